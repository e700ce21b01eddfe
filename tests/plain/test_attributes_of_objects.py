"""An object of the user's own, in the state of a loop, goes on after a pause as it was."""

from __future__ import annotations

import io
import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from left_segments import train_in_segments

from optuna_deadline import resumable
from optuna_deadline.errors import DeadlineError
from optuna_deadline.plain_data import attributes_of, is_data


class EarlyStopper:
    """As users write it."""

    def __init__(self, patience: int) -> None:
        self.patience, self.best, self.bad = patience, float("inf"), 0
        self.history: list[float] = []
        self.seen = deque([0.0], maxlen=2)

    def stops(self, value: float) -> bool:
        self.bad = 0 if value < self.best else self.bad + 1
        self.best = min(self.best, value)
        self.history.append(value)
        self.seen.append(value)
        self.__dict__.setdefault("first", value)
        return self.bad >= self.patience


class Slotted:
    __slots__ = ("__dict__", "count", "rows")

    def __init__(self) -> None:
        self.count, self.rows = 0, np.zeros(2)
        self.more = 0


@dataclass(frozen=True)
class Frozen:
    sums: list[float] = field(default_factory=lambda: [0.0])
    rate: float = 0.5


class Chosen:
    """Says itself what is saved."""

    def __init__(self) -> None:
        self.total, self.lock = 0.0, threading.Lock()

    def __getstate__(self) -> dict[str, float]:
        return {"total": self.total}

    def __setstate__(self, state: dict[str, float]) -> None:
        self.__dict__.update(state)


class Child(EarlyStopper):
    kept = 3


def train(trial: Any) -> tuple[Any, ...]:
    stopper, slotted, frozen, chosen, child = (
        EarlyStopper(3), Slotted(), Frozen(), Chosen(), Child(9),
    )  # fmt: skip
    history = stopper.history  # another name of one of its attributes
    state = {
        "stopper": stopper, "slotted": slotted, "frozen": frozen, "chosen": chosen, "child": child,
    }  # fmt: skip
    loss = 8.0
    training = resumable(trial, steps=6, state=state)
    for step in training:
        loss = 8.0 / step + step % 2
        stopper.stops(loss)
        child.stops(-loss)
        slotted.count += step
        slotted.more += 1
        slotted.rows += loss
        frozen.sums[0] += loss
        chosen.total += loss
        step.report(loss)
    assert history is stopper.history and chosen.lock is not None
    return (
        vars(stopper), slotted.count, slotted.more, slotted.rows.tolist(), frozen.sums,
        chosen.total, vars(child), history,
    )  # fmt: skip


@pytest.mark.parametrize("leave_at", [1, 2, 5])
def test_it_is_the_same_training(tmp_path: Path, leave_at: int) -> None:
    whole, values, _ = train_in_segments(tmp_path / "whole", train, 10**9)
    paused, again, segments = train_in_segments(tmp_path / "paused", train, leave_at)
    assert paused == whole and again == values and segments > 1


@pytest.mark.parametrize("kept", ["GaussianNB", "IncrementalPCA"])
def test_an_estimator_of_arrays_is_one(kept: str, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    from sklearn.decomposition import IncrementalPCA
    from sklearn.naive_bayes import GaussianNB

    rows = np.random.default_rng(1).normal(size=(60, 3))
    classes = (rows.sum(1) > 0).astype(int)

    def fit(trial: Any) -> list[float]:
        model = GaussianNB() if kept == "GaussianNB" else IncrementalPCA(2)
        training = resumable(trial, steps=6, state={"model": model})
        for step in training:
            part = slice(10 * step - 10, 10 * step)
            if kept == "GaussianNB":
                model.partial_fit(rows[part], classes[part], classes=[0, 1])
            else:
                model.partial_fit(rows[part])
            step.report(float(step))
        found = model.predict_proba(rows) if kept == "GaussianNB" else model.transform(rows)
        return [float(one) for one in np.ravel(found)]

    whole, *_ = train_in_segments(tmp_path / "whole", fit, 10**9)
    paused, *_ = train_in_segments(tmp_path / "paused", fit, 2)
    assert paused == whole


def _with(value: Any) -> EarlyStopper:
    stopper = EarlyStopper(1)
    stopper.__dict__["other"] = value
    return stopper


@pytest.mark.parametrize(
    "value", [lambda: 0, io.StringIO(), threading.Lock(), EarlyStopper(1), iter([])]
)
def test_attributes_that_are_no_data_are_refused(value: Any, tmp_path: Path) -> None:
    def fit(trial: Any) -> None:
        for step in resumable(trial, steps=3, state={"mine": _with(value)}):
            step.report(float(step))

    with pytest.raises(DeadlineError, match=r"state\['mine'\] has a "):
        train_in_segments(tmp_path, fit, 1)


@pytest.mark.parametrize(
    "value",
    [
        1, "a", [1], {1: 2}, (1,), {1}, None, b"x", 1.5, np.zeros(3), np.float64(1), deque(),
        EarlyStopper, len, logging, threading.Lock(), io.StringIO(), iter([1]), range(3),
    ],
)  # fmt: skip
def test_data_and_what_lies_outside_of_python_are_no_such_objects(value: Any) -> None:
    assert attributes_of(value) is None


def test_an_object_that_comes_later_keeps_the_slot(tmp_path: Path) -> None:
    """No new process would have one that it could fill."""

    def fit(trial: Any) -> int:
        state: dict[str, Any] = {"later": None}
        training = resumable(trial, steps=4, state=state)
        for step in training:
            if step == 1:
                state["later"] = EarlyStopper(2)
            assert state["later"].stops(float(step)) in (True, False)
            step.report(float(step))
        return len(state["later"].history)

    assert train_in_segments(tmp_path, fit, 2)[0] == 4
    assert not is_data(EarlyStopper(1)) and is_data(None)
