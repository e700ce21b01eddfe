"""AlloX (Le et al., EuroSys 2020) as Shockwave's repository runs it on GPUs of one kind."""

from __future__ import annotations

from dataclasses import dataclass

from optuna_deadline.policies.shockwave.accounting import Allocation
from optuna_deadline.policies.shockwave.views import Market


@dataclass(frozen=True)
class AlloX:
    """The least average completion time, among those that have waited longest.

    On GPUs of one kind the matching of jobs with places in the GPUs' queues has a closed form: the
    shortest first. A single-GPU job keeps its GPU to its end; AlloX knows no gangs, so a gang of
    ``g`` is given the GPU that it is matched with as ``1 / g`` of the time.

    Args:
        alpha: Which part of the waiting jobs is looked at, the oldest first.
    """

    alpha: float = 0.2

    def allocate(self, market: Market, before: Allocation[None] | None) -> Allocation[None]:
        """Who has a GPU keeps it; the others are matched anew."""
        old = before.shares if before is not None else {}
        shares = {job.number: old.get(job.number, 0.0) for job in market.jobs}
        waiting = [job for job in market.jobs if shares[job.number] < 1.0]
        free = market.gpus - (len(market.jobs) - len(waiting))
        waiting.sort(key=lambda job: (job.arrival, job.number))
        looked_at = waiting[: max(int(self.alpha * len(waiting)), free)]
        looked_at.sort(key=lambda job: (job.seconds_left, job.number))
        for job in looked_at[:free]:
            shares[job.number] = 1.0 / job.gang
        return Allocation(shares, None)
