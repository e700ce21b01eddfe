"""The best value so far, and its forecast at the deadline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from optuna.study import Study

from optuna_deadline._numbers import format_count
from optuna_deadline.allocation.records import ReportRow
from optuna_deadline.history.forecast import Fan, Forecast, forecast
from optuna_deadline.history.reader import read_history
from optuna_deadline.history.records import History
from optuna_deadline.history.text import format_value, until_deadline
from optuna_deadline.values.scores import score
from optuna_deadline.visualization import _plotly
from optuna_deadline.visualization._allocation import check_number
from optuna_deadline.visualization._chart import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    Area,
    Axis,
    Chart,
    ChartPart,
    Line,
    Points,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

_CURVE = 40  # points of one trial's reports
_FANS = 4  # fans with a band
_BEST = 100  # improvements, the newest ones


def plot_forecast(
    study: Study, n_recent_trials: int | None = None, *, storage: str | None = None
) -> go.Figure:
    """Plot the best value so far, and its forecast until the deadline.

    Every unfinished trial has a fan: its forecast if it trained from now on, on its present slots
    (one slot if it waits). The point at the deadline is the study's expected best value. A band
    contains eight of ten outcomes. The forecasts are those of :func:`optuna_deadline.forecast`,
    which knows no bounds of the value.

    Args:
        study: A study with a deadline, running or ended.
        n_recent_trials: Show only the reports of this many newest trials; None shows all.
        storage: The database of the allocation table, if the study's storage is not SQL.

    Returns:
        A :class:`plotly.graph_objects.Figure`.

    Raises:
        DeadlineError: The study has no deadline.
        ImportError: Plotly is not installed.
        ValueError: ``n_recent_trials`` is not positive.
    """
    check_number(n_recent_trials)
    _plotly.check_available()
    return _plotly.figure_of(chart_forecast(read_history(study, storage), n_recent_trials))


def chart_forecast(
    history: History, n_recent_trials: int | None = None, expected: Forecast | None = None
) -> Chart:
    """The chart of :func:`plot_forecast`; None computes the forecast."""
    axis = Axis(history, to_deadline=True)
    expected = forecast(history) if expected is None else expected
    curves = history.curves_by_trial
    shown = sorted(curves) if n_recent_trials is None else sorted(curves)[-n_recent_trials:]
    alive = {planned.number for planned in history.trials if planned.alive}
    parts: list[ChartPart] = []
    for name, colour, some in (
        ("ended trials", GREY, [n for n in shown if n not in alive]),
        ("unfinished trials", SKY, [n for n in shown if n in alive]),
    ):
        if some:
            parts.append(_curves(name, colour, [curves[n] for n in some], axis))
    parts += _fans(expected.fans, axis, history.direction)
    best = history.improvements[-_BEST:]
    if best:
        last = (axis(history.end), best[-1].value)
        parts.append(
            Line(
                "best so far",
                BLUE,
                (*(axis(b.at) for b in best), last[0]),
                (*(b.value for b in best), last[1]),
                steps=True,
                width=3.0,
                texts=(
                    *(f"trial {b.number}, step {b.step}" for b in best),
                    f"trial {best[-1].number}, until now",
                ),
                template="best so far %{y:.4g}: {}",
            )
        )
    parts += _expected(history, expected, axis)
    return Chart(
        title="Forecast",
        summary=_summary(history, expected, len(shown), len(curves)),
        x_title=axis.title,
        y_title="Value",
        parts=tuple(parts),
        marks=axis.marks,
        x_range=axis.range,
    )


def _summary(history: History, expected: Forecast, shown: int, all_: int) -> str:
    left = until_deadline(history.time_left, history.settled is not None)
    if expected.best is None:
        return f"no reports yet; {left}"
    if history.settled is not None or history.time_left <= 0:
        words = f"best {format_value(expected.best)}; {left}"
    elif not expected.fans:
        words = f"best {format_value(expected.best)} now, no trial is running; {left}"
    else:
        low, high = sorted((expected.low or 0.0, expected.high or 0.0))
        words = (
            f"best {format_value(expected.best)} now, {format_value(expected.expected)} expected "
            f"({format_value(low)} to {format_value(high)}); {left}"
        )
    return words if shown == all_ else f"{words}; {format_count(shown, 'trial')} of {all_} shown"


def _curves(name: str, colour: str, curves: Sequence[Sequence[ReportRow]], axis: Axis) -> Line:
    """All curves of a kind as one line with gaps, so that the legend switches them together."""
    x: list[float] = []
    y: list[float | None] = []
    texts: list[str] = []
    for rows in curves:
        every = -(-len(rows) // _CURVE)
        for row in [*rows[:-1:every], rows[-1]]:
            x.append(axis(row.at))
            y.append(float(f"{row.value:.5g}"))
            texts.append(f"{row.number}, step {row.step}")
        x.append(x[-1])
        y.append(None)
        texts.append("")
    return Line(
        name, colour, tuple(x), tuple(y), width=1.2, opacity=0.7, markers=True, texts=tuple(texts),
        template="trial {}: %{y:.4g}",
    )  # fmt: skip


def _fans(fans: Sequence[Fan], axis: Axis, direction: str) -> list[ChartPart]:
    """The fans: the most promising trials have a band, running ones first; others a median."""
    order = sorted(
        fans, key=lambda fan: (not fan.running, -score(fan.mid[-1], direction), fan.number)
    )
    parts: list[ChartPart] = []
    named = set()
    for place, fan in enumerate(order):
        name, colour = ("if it continues", GREEN) if fan.running else ("if it resumed", ORANGE)
        x = tuple(axis(at) for at in fan.at)
        if place < _FANS:
            low, high = sorted((fan.low, fan.high))
            parts.append(
                Area("band", colour, x, _short(low), _short(high), opacity=0.12, legend=False,
                     group=name)
            )  # fmt: skip
        parts.append(
            Line(name, colour, x, _short(fan.mid), dash=True, width=1.5, legend=name not in named,
                 texts=(str(fan.number),) * len(x), template="trial {}: %{y:.4g} expected",
                 group=name)
        )  # fmt: skip
        named.add(name)
    return parts


def _short(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(f"{one:.5g}") for one in values)


def _expected(history: History, expected: Forecast, axis: Axis) -> list[ChartPart]:
    """The point at the deadline, with its band as a vertical line."""
    if not expected.fans or expected.expected is None:
        return []
    low, high = expected.low or 0.0, expected.high or 0.0
    x = axis(history.deadline)
    band = f"{format_value(low)} to {format_value(high)}"
    words = f"{format_value(expected.expected)} expected at the deadline ({band})"
    return [
        Line("80 % band", "#000000", (x, x), _short((low, high)), width=4.0, opacity=0.5),
        Points("forecast", "#000000", (x,), _short((expected.expected,)), "diamond", (words,),
               11.0),
    ]  # fmt: skip
