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

import sqlalchemy as sa

from optuna_deadline.allocation.sql import studies
from optuna_deadline.study.terms import Terms


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

    def passed(self, step: int) -> int:
        """The number of milestones at or before ``step``."""
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


def rungs_of(terms: Terms) -> RungRule:
    """The rungs from a study's parameters."""
    return RungRule(
        min_resource=terms.parameters.get("min_resource") or 1,
        reduction_factor=terms.parameters.get("reduction_factor") or 4,
        max_resource=terms.parameters.get("max_resource"),
    )


class HyperSchedRungs:
    """The rule for one study; the database counts the better trials.

    Args:
        terms: The study's terms.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._rule = rungs_of(terms)

    def passed(self, reports: Mapping[int, float]) -> int:
        """The number of rungs that a trial with these reports has passed."""
        return self._rule.passed(max(reports))

    def values_to_record(
        self, reports: Mapping[int, float], rungs: Iterable[int]
    ) -> dict[int, float]:
        """The values to record at ``rungs``."""
        return self._rule.values_to_record(reports, rungs)

    def read(self, connection: sa.Connection, number: int, passed: int) -> list[sa.Row[Any]]:
        """The trial's rank at each rung that it has passed; no row for a deleted study."""
        terms = self._terms
        return studies.view(
            connection, terms.study_id, number, passed=passed, maximize=terms.maximize
        )

    def reason(self, rows: list[sa.Row[Any]]) -> str | None:
        """The first rung that eliminates the trial; None if there is none."""
        for row in rows:
            if row.rung is not None and self._rule.eliminates(row.better, row.total):
                step = self._rule.min_resource * self._rule.reduction_factor**row.rung
                return f"rung {step}: {row.better} of {row.total} are better"
        return None
