"""The spent budget over time, against an even rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optuna.study import Study

from optuna_deadline.history.reader import read_history
from optuna_deadline.history.records import History
from optuna_deadline.history.series import (
    StepFunction,
    available_slots,
    costs,
    integral,
    integrals_until,
    slots_in_use,
    spent,
    value_at,
)
from optuna_deadline.history.text import format_percent, until_deadline
from optuna_deadline.planning.billing.ledger import invoice_of
from optuna_deadline.planning.billing.price_schedule import tariff_of
from optuna_deadline.values.deadlines import format_duration
from optuna_deadline.visualization import _plotly
from optuna_deadline.visualization._chart import (
    BLUE,
    GREY,
    PURPLE,
    SKY,
    VERMILLION,
    Axis,
    Chart,
    Line,
    VerticalMark,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

_POINTS = 120


def plot_budget(study: Study, *, storage: str | None = None) -> go.Figure:
    """Plot the money spent so far, against the budget spread evenly over the time.

    A dotted line marks each change of a price, with the new price per hour, and the host type if
    prices depend on it. If slots cost nothing, the figure shows the used slot-time against the
    available slot-time.

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
    return _plotly.figure_of(chart_budget(read_history(study, storage)))


def chart_budget(history: History) -> Chart:
    """The chart of :func:`plot_budget`."""
    return _money(history) if history.budget is not None else _slot_time(history)


def _money(history: History) -> Chart:
    budget = history.budget
    assert budget is not None
    axis = Axis(history, to_deadline=True)
    paid = spent(history, _POINTS)
    now = paid[-1][1] if paid else 0.0
    share = min(1.0, (history.end - history.started) / (history.deadline - history.started))
    left = until_deadline(history.time_left, history.settled is not None)
    whole = (axis(history.started), axis(history.deadline))
    cost = costs(history)
    ahead: tuple[Line, ...] = ()
    if history.settled is None and history.time_left > 0:
        steps = ((history.end, now), (cost.end, cost.spent_then or now))
        ahead = (Line("with as many slots as now", SKY, *_points(list(steps), axis), dash=True),)
    currency = budget.currency
    return Chart(
        title="Budget",
        summary=(
            f"{now:.4g} of {budget} spent ({format_percent(now, budget.amount)}) in "
            f"{format_percent(share, 1.0)} of the time; {left}"
        ),
        x_title=axis.title,
        y_title=f"Spent [{currency}]",
        parts=(
            Line("spent", BLUE, *_points(paid, axis), width=2.5),
            *ahead,
            Line("even rate", GREY, whole, (0.0, budget.amount), dash=True),
            Line("budget", VERMILLION, whole, (budget.amount, budget.amount), width=1.5),
        ),
        marks=(*axis.marks, *_prices(history, axis)),
        x_range=axis.range,
        from_zero=True,
    )


def _prices(history: History, axis: Axis) -> tuple[VerticalMark, ...]:
    """The times at which the price of a slot changes until the deadline."""
    assert history.budget is not None
    first = tariff_of(history.budget, history.started)
    last = invoice_of(history.money_events, first, history.now).tariff
    marks = []
    for kind, rate in sorted(last.rates.items()):
        for at, price in rate.prices:
            if history.started < at < history.deadline:
                words = f"{kind} {3600 * price:.6g}".strip()
                marks.append(VerticalMark(axis(at), words, PURPLE, dotted=True))
    return tuple(marks)


def _slot_time(history: History) -> Chart:
    axis = Axis(history, to_deadline=True)
    hand, used = available_slots(history), slots_in_use(history.slot_intervals)
    begin, end = history.started, history.end
    held, had = integral(used, begin, end), integral(hand, begin, end)
    size, unit = (60.0, "slot-min") if max(held, had) < 7200 else (3600.0, "slot-h")
    left = until_deadline(history.time_left, history.settled is not None)
    lines = [
        Line("used", BLUE, *_points(_total(used, begin, end, size), axis), width=2.5),
        Line("available", GREY, *_points(_total(hand, begin, end, size), axis), dash=True),
    ]
    if history.settled is None and history.time_left > 0 and hand:
        last = had + value_at(hand, end) * history.time_left
        ahead = (axis(end), axis(history.deadline))
        lines.append(
            Line(
                "available until the deadline", GREY, ahead, (had / size, last / size), opacity=0.5
            )
        )
    return Chart(
        title="Slot-time (without prices)",
        summary=(
            f"{held / size:.3g} of {max(had, held) / size:.3g} {unit} used in "
            f"{format_duration(end - begin)}; {left}"
        ),
        x_title=axis.title,
        y_title=f"Slot-time [{unit}]",
        parts=tuple(lines),
        marks=axis.marks,
        x_range=axis.range,
        from_zero=True,
    )


def _total(steps: StepFunction, begin: float, end: float, size: float) -> StepFunction:
    """The running integral of a step function at evenly spaced times."""
    instants = [begin + (end - begin) * place / _POINTS for place in range(_POINTS + 1)]
    sums = integrals_until(steps, instants)
    return [(at, total / size) for at, total in zip(instants, sums, strict=True)]


def _points(steps: StepFunction, axis: Axis) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(axis(at) for at, _ in steps), tuple(float(f"{y:.5g}") for _, y in steps)
