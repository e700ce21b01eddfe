"""The study behind Hermes' headline: what is drawn, and how it is compared."""

from __future__ import annotations

import pytest

from benchmarks.headlines.hermes import Ratio
from benchmarks.headlines.hermes_study import FAMILIES, TARGET, Case, population, run


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("good", [1, 4, 10])
def test_as_many_reach_the_target_as_are_good(family: str, good: int) -> None:
    workload = population(family, good, seed=3)
    assert sum(workload.peak(index) >= TARGET for index in range(40)) == good
    assert population(family, good, seed=3) == workload


def test_the_study_ends_at_the_target() -> None:
    found = run(Case("hermes", "quick", 10, 0.1, seed=1))
    assert 20 < found.epochs < 400 and 0 < found.overhead < 0.1


def test_a_ratio_of_equals_is_one_and_certain() -> None:
    ratio = Ratio.of([3.0, 5.0, 9.0], [3.0, 5.0, 9.0])
    assert ratio.value == 1.0 and ratio.error == 0.0
    assert Ratio.of([6.0], [3.0]) == Ratio(2.0, None)
    spread = Ratio.of([6.0, 12.0], [3.0, 3.0])
    assert spread.value == 3.0 and spread.error == pytest.approx(1.0)
