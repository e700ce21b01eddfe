"""What a scheduler of jobs sees and answers: a market of jobs at the beginning of a round.

The time that a job will still take is that of Shockwave's Dirichlet predictor over its regimes.
Read in Shockwave's code: each of the job's ``m`` regimes has ``E / m`` epochs by the prior, each
epoch begun adds one to its own, the sum is brought back to ``E``, and epochs that were seen are
taken off. The paper's restatement rule is not in that code and not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Protocol, TypeVar

Memory = TypeVar("Memory")


@dataclass(frozen=True)
class Regime:
    """One way in which a job trains, a batch size as a rule, and how fast it is then."""

    batch_size: int
    epoch_seconds: float  #: of an epoch, alone on the job's own gang
    steps: float  #: of the optimizer in an epoch


@dataclass(frozen=True)
class JobView:
    """One job as far as a scheduler may know it.

    Which regimes a job passes through and how many epochs it has is known; in what order and for
    how long is not. So half of an oracle is asked of the user, as in Shockwave's own code.
    """

    number: int
    arrival: float
    gang: int  #: GPUs, all or none, never resized
    epochs: int
    done: float  #: epochs trained so far, parts of one included
    regimes: tuple[Regime, ...]
    seen: tuple[int, ...]  #: epochs begun so far in each of the regimes
    current: int  #: index of the regime it is in
    received: float = 0.0  #: seconds in which it trained so far
    ran: bool = False  #: whether it was in the round before

    @property
    def left(self) -> float:
        """Epochs that are still to be trained."""
        return max(0.0, self.epochs - self.done)

    @property
    def regime(self) -> Regime:
        """The regime it is in."""
        return self.regimes[self.current]

    @property
    def seconds_left(self) -> float:
        """Seconds left on its own gang, were there no other regime any more."""
        return self.left * self.regime.epoch_seconds


@dataclass(frozen=True)
class Market:
    """All jobs that have arrived and not ended, at the beginning of a round."""

    now: float
    round: int
    round_seconds: float
    gpus: int
    jobs: tuple[JobView, ...]

    @cached_property
    def by_number(self) -> dict[int, JobView]:
        """The jobs by their numbers."""
        return {job.number: job for job in self.jobs}


@dataclass(frozen=True)
class Round(Generic[Memory]):
    """The jobs of the next round, and the state to pass to the scheduler after it."""

    run: tuple[int, ...]
    memory: Memory


class Scheduler(Protocol[Memory]):
    """Decides round by round; a pure function, so what it remembers is a value passed back."""

    def schedule(self, market: Market, memory: Memory | None) -> Round[Memory]:
        """Choose the jobs of one round; ``memory`` is what the round before answered."""


def fit(gpus: int, ranked: list[JobView]) -> list[JobView]:
    """The jobs that run if served in this order; a job that does not fit is skipped."""
    chosen = []
    for job in ranked:
        if job.gang <= gpus:
            chosen.append(job)
            gpus -= job.gang
    return chosen


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
