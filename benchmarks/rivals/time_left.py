"""What stands beside Shockwave in its ablations: rules by the time left, and a shorter sight."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.cluster.jobs import JobView, Market, Round, fit, seconds_left
from benchmarks.cluster.window import Window, WindowScheduler


@dataclass(frozen=True)
class ByTimeLeft:
    """Serves the jobs by their time left, as Shockwave's predictor has it.

    Args:
        longest: Whether the longest goes first, not the shortest.
    """

    longest: bool

    def schedule(self, market: Market, memory: None) -> Round[None]:
        """The first jobs that fit, in each round."""
        sign = -1.0 if self.longest else 1.0
        ranked = sorted(market.jobs, key=lambda job: (sign * seconds_left(job), job.number))
        return Round(tuple(job.number for job in fit(market.gpus, ranked)), None)


@dataclass(frozen=True)
class PresentRegime:
    """Shockwave without its predictor: each job stays in its present regime."""

    shockwave: WindowScheduler

    def schedule(self, market: Market, memory: Window | None) -> Round[Window]:
        """The round that Shockwave would choose if the present regimes were all."""
        return self.shockwave.schedule(
            replace(market, jobs=tuple(map(_alone, market.jobs))), memory
        )


def _alone(job: JobView) -> JobView:
    return replace(job, regimes=(job.regime,), seen=(sum(job.seen),), current=0)
