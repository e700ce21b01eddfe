"""How long a job will still take: Shockwave's Dirichlet predictor over its regimes.

Read in Shockwave's code: each of the job's ``m`` regimes has ``E / m`` epochs by the prior, each
epoch begun adds one to its own, the sum is brought back to ``E``, and epochs that were seen are
taken off. The paper's restatement rule is not in that code and not here.
"""

from __future__ import annotations

from optuna_deadline.policies.shockwave.views import JobView


def seconds_left(job: JobView) -> float:
    """The expected seconds to a job's end, alone on its own gang.

    The rebased counts may leave more epochs than the job has; they are scaled to those it has.
    """
    if job.left <= 0:
        return 0.0
    prior = job.epochs / len(job.regimes)
    counts = [prior + seen for seen in job.seen]
    scale = job.epochs / sum(counts)
    ahead = [max(0.0, scale * n - seen) for n, seen in zip(counts, job.seen, strict=True)]
    total = sum(ahead)
    if total <= 0:
        return job.seconds_left
    paces = [regime.epoch_seconds for regime in job.regimes]
    return job.left / total * sum(n * pace for n, pace in zip(ahead, paces, strict=True))


def seconds_done(job: JobView) -> float:
    """Seconds that the epochs so far took, alone on its own gang."""
    return job.done * mean_epoch_seconds(job)


def mean_epoch_seconds(job: JobView) -> float:
    """Seconds of an epoch, on average over those begun."""
    begun = sum(job.seen)
    if begun == 0:
        return job.regime.epoch_seconds
    paces = (regime.epoch_seconds for regime in job.regimes)
    return sum(n * pace for n, pace in zip(job.seen, paces, strict=True)) / begun
