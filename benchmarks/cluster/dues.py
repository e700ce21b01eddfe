"""What a job is due: its fair finish time, and how much a job that is late weighs.

Read in Shockwave's code: whenever jobs come or go, a job's finish on an equal part of the GPUs is
estimated anew; what it is due is the mean of these estimates over the rounds in which each stood,
with a tenth of the latest. Our reconstruction: rho compares times since the job's arrival, as the
definition of finish-time fairness has it, where the code divides instants since the cluster's
beginning; there a job that comes late can be starved for long before its ratio moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.cluster.jobs import JobView, Market, seconds_done, seconds_left
from optuna_deadline.policies.shockwave.program import weight_of

#: Of the mean of all estimates; the rest is the latest one's.
_MOMENTUM = 0.9


@dataclass(frozen=True)
class Due:
    """Estimates of one job's fair finish time, in seconds after its arrival."""

    latest: float
    since: int  #: the round since which the latest stands
    total: float = 0.0  #: of the earlier ones, times the rounds in which they stood
    rounds: int = 0

    def at(self, now: int) -> float:
        """The fair finish time as it is known in a round."""
        rounds = self.rounds + now - self.since
        total = self.total + self.latest * (now - self.since)
        mean = total / rounds if rounds > 0 else self.latest
        return _MOMENTUM * mean + (1 - _MOMENTUM) * self.latest

    def revised(self, latest: float, now: int) -> Due:
        """With a new estimate."""
        stood = now - self.since
        return Due(latest, now, self.total + self.latest * stood, self.rounds + stood)


def equal_part(market: Market) -> float:
    """The share of the time that each job could train if the GPUs were divided evenly."""
    return min(1.0, market.gpus / max(1, len(market.jobs)))


def revise(market: Market, before: Mapping[int, Due]) -> dict[int, Due]:
    """The estimates of all jobs after arrivals or departures."""
    part = equal_part(market)
    dues = {}
    for job in market.jobs:
        latest = (seconds_done(job) + seconds_left(job)) / part
        old = before.get(job.number)
        dues[job.number] = (
            Due(latest, market.round) if old is None else old.revised(latest, market.round)
        )
    return dues


def rho(market: Market, job: JobView, due: Due) -> float:
    """Finish-time fairness to be expected: above 1 a job ends later than it is due."""
    expected = market.now - job.arrival + seconds_left(job) / equal_part(market)
    return expected / max(1e-9, due.at(market.round))


def weight(market: Market, job: JobView, due: Due, exponent: float) -> float:
    """The weight of a job's progress."""
    nearly = seconds_left(job) < market.round_seconds
    return weight_of(rho(market, job, due), nearly, exponent)
