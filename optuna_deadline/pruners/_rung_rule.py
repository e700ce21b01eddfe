"""The rung rule of asynchronous successive halving as HyperSched applies it.

Milestones lie at ``min_resource * reduction_factor**i`` steps. A trial's score at a rung is its
first report at or past the milestone and never changes. The cutoff is the quantile
``1 - 1/reduction_factor`` of all scores recorded there so far, by linear interpolation; a trial
with a score below it is eliminated. Each report checks a trial at all rungs that it has passed,
since a cutoff rises when other trials arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from optuna_deadline.policies.measured_halving import Rungs, TimeLeft


@dataclass(frozen=True)
class RungRule:
    """The positions of the rungs.

    Attributes:
        min_resource: The first milestone, in steps.
        reduction_factor: The ratio of one milestone to the one before.
        max_resource: The step at which a trial ends normally; no milestone lies there or beyond.
    """

    min_resource: int
    reduction_factor: int
    max_resource: int | None = None

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> RungRule:
        """The rule from a study's parameters."""
        return cls(
            min_resource=parameters.get("min_resource") or 1,
            reduction_factor=parameters.get("reduction_factor") or 4,
            max_resource=parameters.get("max_resource"),
        )

    def passed(self, reports: Mapping[int, float]) -> int:
        """The number of milestones at or before the last report."""
        step = max(reports)
        count, milestone = 0, self.min_resource
        while milestone <= step and (self.max_resource is None or milestone < self.max_resource):
            count, milestone = count + 1, milestone * self.reduction_factor
        return count

    def eliminates(self, better: int, total: int) -> bool:
        """Whether a score at a rung lies below the cutoff.

        The quantile lies at position ``(total - 1) * (1 - 1/reduction_factor)`` of the scores from
        the worst to the best, and no score lies between the two that it interpolates. So a score
        is below the cutoff exactly if it is below the upper of the two: counting is enough, and
        NaN and infinities need no arithmetic.

        Args:
            better: The number of scores at the rung that are strictly better.
            total: The number of scores at the rung, this one included; one alone has no cutoff.
        """
        upper = -(-(total - 1) * (self.reduction_factor - 1) // self.reduction_factor)
        return total > 1 and better >= total - upper

    def values_to_record(
        self, reports: Mapping[int, float], rungs: Iterable[int]
    ) -> dict[int, float]:
        """The values to record at ``rungs``, each the first report at or past the milestone."""
        found = {}
        for rung in rungs:
            milestone = self.min_resource * self.reduction_factor**rung
            found[rung] = reports[min(step for step in reports if step >= milestone)]
        return found

    def judge(
        self, rungs: Rungs, number: int, reports: Mapping[int, float], left: TimeLeft
    ) -> str | None:
        """The first rung that eliminates a trial with these reports; None if there is none."""
        for rung in range(self.passed(reports)):
            better, total = rungs.rank(number, rung)
            if self.eliminates(better, total):
                step = self.min_resource * self.reduction_factor**rung
                return f"rung {step}: {better} of {total} are better"
        return None
