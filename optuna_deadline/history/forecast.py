"""Forecasts of the live trials and of the best value at the deadline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from optuna_deadline.allocation.records import PlannedTrial
from optuna_deadline.forecasting.curve_priors import LEVELS
from optuna_deadline.forecasting.futures import best_by, limits_of, measures
from optuna_deadline.forecasting.learning_curves import Curve, Doublings, learn_doublings
from optuna_deadline.forecasting.regimes import seconds_between, shifted, step_after
from optuna_deadline.forecasting.reporting import step_before_all, trained_steps
from optuna_deadline.history.records import History
from optuna_deadline.history.series import Measured, costs, measure
from optuna_deadline.values.scores import score

_POINTS = 8
_INSTANT = 1e-3  # seconds; a logarithm is taken of them
_WAITING = 8  #: waiting trials that are included
_LOW, _MID, _HIGH = (LEVELS.index(level) for level in (0.1, 0.5, 0.9))


@dataclass(frozen=True)
class Fan:
    """The predicted value of one trial, if it keeps training on its present slots.

    Eight of ten outcomes are between ``low`` and ``high``; ``mid`` is the median.
    """

    number: int
    running: bool
    slots: int
    at: tuple[float, ...]
    mid: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Forecast:
    """The best value now, and what is expected at the deadline.

    Eight of ten outcomes are between ``low`` and ``high``; ``low`` is the worse one.
    """

    best: float | None
    expected: float | None
    low: float | None
    high: float | None
    fans: tuple[Fan, ...] = ()
    levels: tuple[float, ...] = ()  #: the best score at each of the levels, larger is better
    slot_hours: float = 0.0  #: held by the end, if as many slots stay in use as now
    spent: float | None = None  #: money by the end, likewise; None where slots cost nothing


def forecast(history: History) -> Forecast:
    """The best value expected at the deadline, and the expected value of each trial.

    The best value rises as it did in studies whose scores had the same spread
    (:mod:`optuna_deadline.forecasting.futures`). A fan is the expectation of
    :class:`~optuna_deadline.forecasting.learning_curves.Doublings`, learned from all curves of the
    study, at the steps that the trial's own pace, S(k) and the measured overheads allow until the
    deadline; for a waiting trial, as if it had one slot from now on.
    """
    direction, known = history.direction, history.improvements
    best = known[-1].value if known else None
    cost = costs(history)
    then = cost.slot_hours_then, cost.spent_then
    if best is None or history.settled is not None or history.time_left <= 0:
        levels = () if best is None else (score(best, direction),) * len(LEVELS)
        return Forecast(best, best, best, best, (), levels, *then)
    measured = measure(history.segments, history.reports, history.slots)
    curves = known_curves(history)
    model = learn_doublings(curves.values())
    limits = limits_of(curves.values())
    found = (
        _fan(history, planned, curves[planned.number], model, measured, limits)
        for planned in _trials_to_forecast(history, curves)
    )
    fans = [fan for fan in found if fan is not None]
    course = course_of(history)
    now = max(course.steps[-1], history.now - history.started)
    apart = measures(curves.values(), course, now)
    risen = best_by(course.best[-1], apart, now, history.deadline - history.started)
    expected = tuple(np.clip(risen, *limits).tolist())
    return Forecast(
        best,
        score(expected[_MID], direction),
        score(expected[_LOW], direction),
        score(expected[_HIGH], direction),
        tuple(fans),
        expected,
        *then,
    )


def course_of(history: History) -> Curve:
    """When the best score rose, in seconds since the study began; needs at least one score."""
    known = history.improvements
    return Curve(
        tuple([max(one.at - history.started, _INSTANT) for one in known]),
        tuple([score(one.value, history.direction) for one in known]),
    )


def known_curves(history: History) -> dict[int, Curve]:
    """The scores of every trial by trained steps, larger is better.

    If steps count from 0, a report of step 0 comes after one step. A plain study's trials, which
    have no other measure of their training, count from their first step.
    """
    before = -trained_steps(0, first_step(history))
    if history.plain:
        curves = history.curves_by_trial.values()
        before = step_before_all([row.step for row in rows] for rows in curves)
    found = {
        number: Curve.of(
            [row.step - before for row in rows],
            [score(row.value, history.direction) for row in rows],
        )
        for number, rows in history.curves_by_trial.items()
    }
    return {number: curve for number, curve in found.items() if curve is not None}


def first_step(history: History) -> int:
    """The first reported step: 0 if a study's steps count from there."""
    return min((rows[0].step for rows in history.curves_by_trial.values()), default=1)


def _trials_to_forecast(history: History, curves: Mapping[int, Curve]) -> list[PlannedTrial]:
    """Trials with a finite report: all running ones, and the best waiting ones."""
    alive = [
        planned
        for planned in history.trials
        if planned.alive and planned.mode != "stop" and planned.number in curves
    ]
    waiting = [planned for planned in alive if planned.owner is None]
    waiting.sort(key=lambda planned: (-curves[planned.number].best[-1], planned.number))
    return [*(planned for planned in alive if planned.owner is not None), *waiting[:_WAITING]]


def _fan(
    history: History,
    planned: PlannedTrial,
    curve: Curve,
    model: Doublings,
    measured: Measured,
    limits: tuple[float, float],
) -> Fan | None:
    running = planned.owner is not None
    slots = max(1, planned.slots) if running else 1
    if planned.number not in measured.seconds:
        return None
    a_step = measured.seconds[planned.number] / max(measured.speedup(slots), 1e-9)
    start = history.now if running else history.now + measured.overhead.startup
    last, first = curve.steps[-1], first_step(history)
    changes = shifted(measured.changes.get(planned.number, ()), trained_steps(0, first))
    until = history.deadline
    if planned.horizon is not None:
        end = trained_steps(planned.horizon, first)
        until = min(until, start + seconds_between(last, end, a_step, changes))
    if until <= start or a_step <= 0:
        return None
    at = [start + (until - start) * i / _POINTS for i in range(_POINTS + 1)]
    steps = [step_after(instant - start, last, a_step, changes) for instant in at]
    look = [np.clip(model.quantiles(curve, step), *limits).tolist() for step in steps]
    if until < history.deadline:  # it keeps its value from then on
        at.append(history.deadline)
        look.append(look[-1])
    return Fan(
        planned.number, running, slots if running else 0, tuple(at),
        tuple([score(levels[_MID], history.direction) for levels in look]),
        tuple([score(levels[_LOW], history.direction) for levels in look]),
        tuple([score(levels[_HIGH], history.direction) for levels in look]),
    )  # fmt: skip
