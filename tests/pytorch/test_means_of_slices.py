"""A mean that counts slices of other lengths alike is warned of, where there are such slices."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from optuna_deadline_torch import measures
from optuna_deadline_torch.measures import MetricWatcher
from torchmetrics import MeanMetric, SumMetric

Update = Callable[[Any, torch.Tensor], Any]
LOSSES = torch.tensor([0.5, 1.5, 4.0])


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> MetricWatcher:
    made = MetricWatcher(lambda: False)
    monkeypatch.setattr(measures, "_current", None)  # and as it was, afterwards
    made.watch()
    return made


def warned(
    caplog: pytest.LogCaptureFixture,
    watching: MetricWatcher,
    metric: Any,
    update: Update,
    weight: float,
) -> int:
    for _ in range(3):
        watching.begin_batch(weight=weight)
        update(metric, LOSSES)
        watching.end_batch()
    return sum("unweighted MeanMetric" in record.message for record in caplog.records)


def as_one(metric: Any, losses: torch.Tensor) -> None:
    metric.update(losses.mean())


def forward(metric: Any, losses: torch.Tensor) -> None:
    metric(losses.mean())


def weighed(metric: Any, losses: torch.Tensor) -> None:
    metric(losses.mean(), len(losses))


def each(metric: Any, losses: torch.Tensor) -> None:
    metric.update(losses)


@pytest.mark.parametrize("update", [as_one, forward])
def test_a_mean_of_uneven_slices_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, watching: MetricWatcher, update: Update
) -> None:
    assert warned(caplog, watching, MeanMetric(), update, 1.2) == 1


@pytest.mark.parametrize("update", [weighed, each])
def test_a_mean_over_samples_is_not(
    caplog: pytest.LogCaptureFixture, watching: MetricWatcher, update: Update
) -> None:
    metric = MeanMetric()
    assert warned(caplog, watching, metric, update, 0.8) == 0
    assert float(metric.compute()) == pytest.approx(2.0)


@pytest.mark.parametrize("update", [as_one, forward])
def test_nor_one_of_slices_that_are_alike_nor_another_metric(
    caplog: pytest.LogCaptureFixture, watching: MetricWatcher, update: Update
) -> None:
    assert warned(caplog, watching, MeanMetric(), update, 1.0) == 0
    assert warned(caplog, watching, SumMetric(), update, 1.2) == 0


def test_nor_one_of_a_validation(
    caplog: pytest.LogCaptureFixture, watching: MetricWatcher
) -> None:
    watching.evaluates = lambda: True
    with caplog.at_level(logging.INFO):
        assert warned(caplog, watching, MeanMetric(), as_one, 1.2) == 0


def test_what_a_padding_measures_is_taken_back(watching: MetricWatcher) -> None:
    metric = MeanMetric()
    metric.update(3.0)
    watching.begin_batch(weight=0.0)
    metric.update(9.0)
    watching.end_batch()
    assert float(metric.compute()) == 3.0
