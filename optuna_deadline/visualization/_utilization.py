"""The number of the study's slots that trained, started or stopped, and idled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optuna.study import Study

from optuna_deadline.history.reader import read_history
from optuna_deadline.history.records import History
from optuna_deadline.history.series import (
    StepFunction,
    available_slots,
    integral,
    integrals_until,
    sampled,
    slots_in_use,
    slots_starting_or_stopping,
)
from optuna_deadline.history.text import format_percent, until_deadline
from optuna_deadline.visualization import _plotly
from optuna_deadline.visualization._chart import BLUE, GREY, ORANGE, Area, Axis, Chart, Line

if TYPE_CHECKING:
    import plotly.graph_objects as go

_POINTS = 400


def plot_utilization(study: Study, *, storage: str | None = None) -> go.Figure:
    """Plot the number of slots that trained, started or stopped, and idled.

    A start lasts from the grant to the first step, a stop from the directive to the last rank's
    exit. Together they are the cost of moving trials.

    Args:
        study: A study with a deadline, running or ended.
        storage: The database of the allocation table, if the study's storage is not SQL.

    Returns:
        A :class:`plotly.graph_objects.Figure`.

    Raises:
        DeadlineError: The study has no deadline.
        ImportError: Plotly is not installed.
    """
    _plotly.check_available()
    return _plotly.figure_of(chart_utilization(read_history(study, storage)))


def chart_utilization(history: History, most_steps: int = _POINTS) -> Chart:
    """The chart of :func:`plot_utilization`; beyond a number of steps it shows means."""
    hand, used, lost = (
        available_slots(history),
        slots_in_use(history.slot_intervals),
        slots_starting_or_stopping(history),
    )
    axis = Axis(history)
    begin = hand[0][0] if hand else history.started
    had, held = integral(hand, begin, history.end), integral(used, begin, history.end)
    moved = integral(lost, begin, history.end)
    left = until_deadline(history.time_left, history.settled is not None)
    if held == 0:
        verdict = f"no slot has been used yet; {left}"
    else:
        verdict = (
            f"{format_percent(held, max(had, held))} of the available slots busy, "
            f"{format_percent(moved, held)} of that starting and stopping; {left}"
        )
    at = sampled((hand, used, lost), begin, history.end, most_steps)
    there, busy, move = (_means(steps, [*at, history.end]) for steps in (hand, used, lost))
    train = [max(0.0, b - m) for b, m in zip(busy, move, strict=True)]
    x = tuple(axis(instant) for instant in (*at, history.end))
    top = _closed([max(t, b) for t, b in zip(there, busy, strict=True)])
    parts = (
        Area("training", BLUE, x, (0.0,) * len(x), _closed(train), steps=True, opacity=0.75),
        Area("starting, stopping", ORANGE, x, _closed(train), _closed(busy), True, 0.85),
        Area("idle", GREY, x, _closed(busy), top, steps=True, opacity=0.3),
        Line("available", "#444444", x, _closed(there), steps=True, width=1.2),
    )
    return Chart(
        title="Slot use",
        summary=verdict,
        x_title=axis.title,
        y_title="Slots",
        parts=parts if at else (),
        marks=axis.marks,
        x_range=axis.range,
        from_zero=True,
    )


def _means(steps: StepFunction, instants: list[float]) -> list[float]:
    """The means of a step function between successive times."""
    sums = integrals_until(steps, instants)
    return [
        round((sums[place + 1] - sums[place]) / (instants[place + 1] - instants[place]), 3)
        for place in range(len(instants) - 1)
    ]


def _closed(values: list[float]) -> tuple[float, ...]:
    """Extend the last value to the end."""
    return (*values, values[-1]) if values else ()
