"""The rung rule of asynchronous successive halving as HyperSched applies it.

Milestones lie at ``min_resource * reduction_factor**i`` steps. A trial's score at a rung is its
first report at or past the milestone and never changes. The cutoff is the quantile
``1 - 1/reduction_factor`` of all scores recorded there so far, by linear interpolation; a trial
with a score below it is eliminated. Each report checks a trial at all rungs that it has passed,
since a cutoff rises when other trials arrive.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optuna_deadline.policies.measured_halving import Rungs


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

    def values(self, reports: Mapping[int, float]) -> list[float]:
        """The values at the rungs passed, each the first report at or past the milestone."""
        steps, found, milestone = sorted(reports), [], self.min_resource
        while milestone <= steps[-1] and milestone < (self.max_resource or math.inf):
            found.append(reports[steps[bisect_left(steps, milestone)]])
            milestone *= self.reduction_factor
        return found

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

    def judge(
        self, rungs: Rungs, number: int, reports: Mapping[int, float], left: object
    ) -> str | None:
        """The first rung that eliminates a trial with these reports; None if there is none."""
        for rung in range(len(self.values(reports))):
            better, total = rungs.rank(number, rung)
            if self.eliminates(better, total):
                step = self.min_resource * self.reduction_factor**rung
                return f"rung {step}: {better} of {total} are better"
        return None
