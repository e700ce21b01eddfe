"""How a check tells a harmless difference of a reported value from a wrong one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from optuna_deadline.checking.inside import OTHER_DRAWS
from optuna_deadline.checking.moves import Check
from optuna_deadline.checking.rows import CheckResult, Gap
from optuna_deadline.checking.runs import Leg, TrainingRun


class PlayedRuns:
    """Trainings with dropout, of given loss; those on other slots have other weights.

    Args:
        moved: The loss that a moved training reports; undisturbed it is 1.
        drawn: The losses with other random numbers, one for each repetition.
        weights: How far the weights with other random numbers are from the undisturbed ones.
    """

    def __init__(self, moved: float, drawn: Sequence[float], weights: float = 0.1) -> None:
        self._moved, self._drawn, self._weights = moved, drawn, weights
        self.repetitions = 0

    def train(self, *legs: Leg, variant: tuple[str, int] | None = None) -> TrainingRun:
        loss, slots = 1.0, max(leg.slots for leg in legs)
        if slots > 1:
            loss = self._moved
        elif variant is not None and variant[0] == OTHER_DRAWS:
            assert variant[1] == self.repetitions + 1
            loss = self._drawn[self.repetitions]
            self.repetitions += 1
        last = legs[-1].leave_at
        return TrainingRun(
            positions=[0.1 * step for step in range(last)],
            values={0: loss},
            reported=[(10, 0, slots)],
            looked=True,
            # Its name says which training it is.
            checkpoint=Path("moved" if slots > 1 else "drawn" if loss != 1 else "still"),
        )

    def gap(self, one: TrainingRun, other: TrainingRun) -> Gap:
        assert other.checkpoint is not None
        far = {"still": 0.0, "moved": 0.1, "drawn": self._weights}
        return Gap({"weights": far[str(other.checkpoint)]})


@pytest.mark.parametrize(
    ("moved", "drawn", "weights", "harmless", "repetitions"),
    [
        (1.1, [1.05], 0.1, True, 1),
        (1.1, [1.001, 1.002, 1.06], 0.1, True, 3),  # two of them are close by chance
        (1.5, [1.01, 1.02, 0.99, 1.001, 1.03], 0.1, False, 5),
        (1.1, [1.001], 0.01, False, 1),  # the weights are wrong anyway
    ],
)
def test_a_value_is_wrong_only_if_no_repetition_is_as_far(
    moved: float, drawn: list[float], weights: float, harmless: bool, repetitions: int
) -> None:
    runs = PlayedRuns(moved, drawn, weights)
    *_, row = Check(cast(Any, runs), steps=20).rows()
    assert row.name == "reported on 2 slots" and row.result is CheckResult.DIFFERS
    assert row.excused is harmless
    assert runs.repetitions == repetitions
