"""The rung rule of asynchronous successive halving as HyperSched applies it, without any I/O.

Milestones lie at ``min_resource * reduction_factor**i`` steps. A trial's score at a rung is its
first report at or past the milestone and never changes. The cutoff is the quantile
``1 - 1/reduction_factor`` of all scores recorded there so far, by linear interpolation; a trial
with a score below it is eliminated. A trial is checked at all rungs it has passed, again and
again, since a cutoff rises as others arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class RungRule:
    """Where the rungs are.

    Attributes:
        min_resource: The first milestone, in steps.
        reduction_factor: The ratio of one milestone to the one before.
        max_resource: Where a trial ends normally; no milestone lies there or beyond.
    """

    min_resource: int
    reduction_factor: int
    max_resource: int | None = None

    def passed(self, step: int) -> int:
        """How many milestones lie at or before ``step``."""
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
            better: How many scores at the rung are strictly better.
            total: How many scores the rung has, this one included; one alone has no cutoff.
        """
        upper = -(-(total - 1) * (self.reduction_factor - 1) // self.reduction_factor)
        return total > 1 and better >= total - upper

    def finished(self, step: int) -> bool:
        """Whether a trial at ``step`` has trained as long as it may."""
        return self.max_resource is not None and step >= self.max_resource

    def values_to_record(
        self, reports: Mapping[int, float], rungs: Iterable[int]
    ) -> dict[int, float]:
        """The values to record at ``rungs``, each the first report at or past the milestone."""
        found = {}
        for rung in rungs:
            milestone = self.min_resource * self.reduction_factor**rung
            found[rung] = reports[min(step for step in reports if step >= milestone)]
        return found
