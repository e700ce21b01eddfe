"""A step of a report means as much training in every trial, however often it validates."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from optuna_deadline_lightning.reporting import ReportSteps


class Fit:
    """A trainer that validates as Lightning does, without training."""

    def __init__(
        self,
        batches: int,
        interval: float | int,
        *,
        epochs: int = 3,
        every: int | None = 1,
        max_steps: int = -1,
    ) -> None:
        self.trainer: Any = SimpleNamespace(
            num_training_batches=batches,
            val_check_interval=interval,
            check_val_every_n_epoch=every,
            max_epochs=epochs,
            max_steps=max_steps,
            accumulate_grad_batches=1,
            current_epoch=0,
            is_last_batch=False,
            fit_loop=SimpleNamespace(batch_idx=0, total_batch_idx=0),
        )
        self.batch = (
            interval if isinstance(interval, int) else max(1, math.floor(batches * interval))
        )

    def places(self) -> list[tuple[int, int]]:
        """The epoch and the batch of each validation, counted from 1."""
        trainer, every = self.trainer, self.trainer.check_val_every_n_epoch
        size = trainer.num_training_batches
        steps = trainer.max_steps if trainer.max_steps > 0 else math.inf
        found = []
        for epoch in range(trainer.max_epochs):
            for batch in range(1, size + 1):
                total = epoch * size + batch
                count = total if every is None else batch
                if total <= steps and count % self.batch == 0 and (epoch + 1) % (every or 1) == 0:
                    found.append((epoch, batch))
        return found

    def validate(self, steps: ReportSteps, place: tuple[int, int]) -> int | None:
        trainer = self.trainer
        trainer.current_epoch, trainer.fit_loop.batch_idx = place[0], place[1] - 1
        trainer.fit_loop.total_batch_idx = place[0] * trainer.num_training_batches + place[1] - 1
        return steps.reached(trainer)

    def reported(self) -> list[int]:
        steps = ReportSteps()
        found = [self.validate(steps, place) for place in self.places()]
        return [step for step in found if step is not None]

    @property
    def horizon(self) -> int | None:
        return ReportSteps().horizon(self.trainer)


@pytest.mark.parametrize("batches", [4, 28, 30, 100, 1001])
def test_four_validations_an_epoch_are_four_steps_whatever_the_batch_size(batches: int) -> None:
    fit = Fit(batches, 0.25)
    assert fit.reported() == list(range(12)) and fit.horizon == 11


def test_each_epoch_is_a_step_where_it_is_validated_once() -> None:
    assert Fit(28, 1.0).reported() == [0, 1, 2]
    assert Fit(28, 0.7).reported() == [0, 1, 2]
    assert Fit(28, 1.0, every=2, epochs=5).reported() == [1, 3]
    assert [Fit(28, 1.0).horizon, Fit(28, 1.0, every=2, epochs=5).horizon] == [2, 3]


def test_an_epoch_too_short_for_its_validations_keeps_to_the_steps_of_the_others() -> None:
    """Of 7 batches a quarter is 1 for Lightning, which validates 7 times."""
    assert Fit(7, 0.25, epochs=2).reported() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert Fit(2, 0.25, epochs=2).reported() == [1, 3, 5, 7]


def test_an_interval_in_batches_is_a_step_across_epochs() -> None:
    fit = Fit(28, 10, every=None, epochs=5)
    assert fit.reported() == list(range(14)) and fit.horizon == 13
    longer = Fit(25, 30, every=None, epochs=5)  # than an epoch
    assert longer.reported() == [0, 1, 2, 3] and longer.horizon == 3


@pytest.mark.parametrize("epochs", range(1, 6))
@pytest.mark.parametrize("batches", [10, 25, 28, 30])
def test_an_interval_in_batches_that_begins_with_each_epoch(batches: int, epochs: int) -> None:
    """A step is at the same number of batches in every trial, to an interval exactly."""
    fit = Fit(batches, 10, epochs=epochs)
    steps = fit.reported()
    assert len(steps) == len(fit.places()) and steps == sorted(set(steps))
    for step, (epoch, batch) in zip(steps, fit.places(), strict=True):
        assert 0 <= (step + 1) * 10 - (epoch * batches + batch) < 10
    assert fit.horizon is not None and 0 <= fit.horizon - steps[-1] <= 0


@pytest.mark.parametrize("max_steps", [5, 10, 37, 38, 60, 84])
@pytest.mark.parametrize("interval", [0.25, 1.0, 10])
def test_the_horizon_is_the_last_step_also_with_max_steps(interval: float, max_steps: int) -> None:
    fit = Fit(28, interval, epochs=9, max_steps=max_steps)
    reported = fit.reported()
    assert fit.horizon == (reported[-1] if reported else 0)


def test_a_fit_without_end_has_no_horizon() -> None:
    assert Fit(28, 0.25, epochs=-1).horizon is None
    assert Fit(28, 10, epochs=-1).horizon is None
    endless = Fit(28, 10, every=None, epochs=-1, max_steps=100)
    endless.trainer.num_training_batches = math.inf
    assert endless.horizon == 9


def test_epochs_of_unknown_length_are_steps_also_where_one_is_stopped_within() -> None:
    fit, steps = Fit(10, 1.0), ReportSteps()
    fit.trainer.num_training_batches = math.inf
    fit.trainer.is_last_batch = True
    assert [fit.validate(steps, (epoch, 10)) for epoch in (0, 1)] == [0, 1]
    assert steps.progress(fit.trainer) == 2.0 and fit.horizon == 2
    fit.trainer.is_last_batch = False
    assert fit.validate(steps, (2, 4)) == 2 and steps.progress(fit.trainer) == 2.0


def test_validations_by_time_are_counted() -> None:
    fit = Fit(28, 1.0)
    fit.trainer._val_check_time_interval = 60.0
    steps = ReportSteps()
    assert [fit.validate(steps, (0, batch)) for batch in (3, 9, 15)] == [0, 1, 2]
    assert steps.progress(fit.trainer) == 3.0 and fit.horizon is None


@pytest.mark.parametrize("interval", [0.25, 10, 1.0])
def test_a_fit_that_is_resumed_in_the_middle_of_an_epoch_goes_on_with_its_numbers(
    interval: float,
) -> None:
    fit = Fit(28, interval)
    whole, places = fit.reported(), fit.places()
    for cut in range(1, len(places)):
        steps = ReportSteps()
        steps.last = whole[cut - 1]
        assert [fit.validate(steps, place) for place in places[cut:]] == whole[cut:]


@pytest.mark.parametrize("interval", [0.25, 10, 1.0])
def test_progress_is_in_steps(interval: float) -> None:
    fit = Fit(30, interval)
    steps = ReportSteps()
    for place in fit.places():
        step = fit.validate(steps, place)
        assert step is not None and step < steps.progress(fit.trainer) <= step + 1
