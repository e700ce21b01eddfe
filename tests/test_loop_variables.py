"""What a loop keeps outside its checkpoints is named, and nothing else is."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from optuna_deadline.loop_variables import LoopVariables

TOTALS = {"steps": 0}


class Counted:
    """Counts in an object, and in its class."""

    steps = 0

    def __init__(self) -> None:
        self.own = 0

    def step(self) -> None:
        type(self).steps += 1


class Rows:
    """A dataset, whose rows may be many."""

    def __init__(self) -> None:
        self.rows, self.level = [1.0] * 10, 0

    def __getitem__(self, index: int) -> float:
        return self.rows[index] * self.level


class Loader:
    def __init__(self, dataset: Rows) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[float]:
        return iter(self.dataset.rows)


class Averages:
    """Has a state of its own."""

    total = 0.0

    def state_dict(self) -> dict[str, float]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.total = state["total"]


def count_globally() -> None:
    TOTALS["steps"] += 1


def numbers() -> Iterator[int]:
    yield from range(100)


def changed(train: Callable[..., None], **given: Any) -> list[str]:
    """The names after a loop that trains with some objects in its variables."""
    found: list[str] = []

    def loop(one: Any) -> None:
        watched = LoopVariables(list)
        train(one)
        found.extend(watched.changed())

    loop(given["one"])
    return [name for name in found if name.startswith(("one", "Counted", "TOTALS"))]


@pytest.mark.parametrize(
    ("one", "train", "name"),
    [
        ([1], lambda one: one.append(2), "one"),
        (list(range(5000)), lambda one: one.append(1), "one"),
        (np.zeros(10**6), lambda one: one.__iadd__(1), "one"),
        (random.Random(0), lambda one: one.random(), "one"),
        ({"train": [1], "test": np.zeros(3)}, lambda one: one["train"].append(2), "one"),
        ([np.zeros(3), np.zeros(3)], lambda one: [each.__iadd__(1) for each in one], "one"),
        (Counted(), lambda one: setattr(one, "own", 1), "one.own"),
        (Counted(), lambda one: setattr(one, "new", 1), "one.new"),
        ([Counted()], lambda one: setattr(one[0], "own", 1), "one[0].own"),
        ({"a": Counted()}, lambda one: setattr(one["a"], "own", 1), "one['a'].own"),
        (Counted(), lambda one: one.step(), "Counted.steps"),
        (Rows(), lambda one: setattr(one, "level", 1), "one.level"),
        (Loader(Rows()), lambda one: setattr(one.dataset, "level", 1), "one.dataset.level"),
        (itertools.cycle([1, 2]), next, "one"),
        (itertools.count(), next, "one"),
        (numbers(), next, "one"),
        (count_globally, lambda one: one(), "TOTALS"),
    ],
)
def test_what_training_changes_is_named(one: Any, train: Any, name: str) -> None:
    assert changed(train, one=one) == [name]


@pytest.mark.parametrize(
    "one",
    [
        1,
        "text",
        [1],
        Counted(),
        Rows(),
        Loader(Rows()),
        Averages(),
        np.zeros(10**6),
        count_globally,
    ],
)
def test_what_training_only_reads_is_not_named(one: Any) -> None:
    assert changed(lambda one: None, one=one) == []


def test_a_state_of_its_own_and_what_is_saved_are_left_alone() -> None:
    averages, saved = Averages(), [0]
    watched = LoopVariables(lambda: [saved])
    averages.total, saved[0] = 1.0, 1
    assert watched.changed() == []


def test_a_number_that_equals_a_saved_one_is_named() -> None:
    counted = Counted()
    watched = LoopVariables(lambda: [0, 1])
    counted.own += 1
    assert watched.changed() == ["counted.own"]


def test_a_loop_whose_variables_are_restored_names_no_global_one() -> None:
    counts = count_globally
    watched = LoopVariables(list, with_globals=False)
    counts()
    assert watched.changed() == []
