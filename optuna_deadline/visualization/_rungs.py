"""The number of trials at each rung, and their values there."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from optuna.study import Study

from optuna_deadline.allocation.records import PlannedTrial
from optuna_deadline.forecasting.reporting import trained_steps
from optuna_deadline.history.forecast import first_step
from optuna_deadline.history.reader import read_history
from optuna_deadline.history.records import History
from optuna_deadline.history.text import format_value
from optuna_deadline.policies.rungs import milestones
from optuna_deadline.values.scores import score
from optuna_deadline.visualization import _plotly
from optuna_deadline.visualization._allocation import check_number
from optuna_deadline.visualization._chart import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    VERMILLION,
    Chart,
    Line,
    Points,
    Symbol,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

_KINDS: dict[str, tuple[str, Symbol]] = {
    "continued": (BLUE, "circle"),
    "continues from here": (GREEN, "diamond"),
    "waits": (ORANGE, "open"),
    "pruned here": (GREY, "x"),
    "failed here": (VERMILLION, "x"),
    "complete": (GREEN, "star"),
}


def plot_rungs(
    study: Study, n_recent_trials: int | None = None, *, storage: str | None = None
) -> go.Figure:
    """Plot the report of each trial at each rung that it reached, and its state after it.

    The rungs are the policy's: ``min_resource * reduction_factor ** i`` steps. A trial's value at
    a rung is its first report at or after the rung. Steps that begin at 0 count as 1, 2, ...

    Args:
        study: A study with a deadline, running or ended.
        n_recent_trials: Show only this many newest trials; None shows all.
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
    return _plotly.figure_of(chart_rungs(read_history(study, storage), n_recent_trials))


def chart_rungs(history: History, n_recent_trials: int | None = None) -> Chart:
    """The chart of :func:`plot_rungs`."""
    curves = history.curves_by_trial
    begins = first_step(history)
    highest = max((trained_steps(rows[-1].step, begins) for rows in curves.values()), default=0)
    first = max(1, _whole(history.parameters, "min_resource", 1))
    factor = max(2, _whole(history.parameters, "reduction_factor", 4))
    steps = milestones(first, factor, max(highest, first))
    states = {planned.number: planned for planned in history.trials}
    at_rung: list[dict[int, float]] = [{} for _ in steps]
    for number, rows in curves.items():
        for place, milestone in enumerate(steps):
            row = next((r for r in rows if trained_steps(r.step, begins) >= milestone), None)
            if row is not None:
                at_rung[place][number] = row.value
    shown = set(sorted(curves)[-n_recent_trials:] if n_recent_trials else curves)
    kinds: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for place, values in enumerate(at_rung):
        last = place + 1 == len(steps)
        # Side by side, so that trials of equal value do not hide each other.
        order = sorted(values)
        for index, number in enumerate(order):
            if number not in shown:
                continue
            x = place + (0.0 if len(order) == 1 else 0.5 * (index / (len(order) - 1) - 0.5))
            went_on = not last and number in at_rung[place + 1]
            planned = states.get(number)
            kind = _kind(went_on, planned)
            reason = "" if went_on or planned is None else f"\n{planned.reason}"
            words = (
                f"trial {number}: {format_value(values[number])} at step {steps[place]}, {kind}"
            )
            kinds[kind].append((round(x, 3), values[number], words + reason))
    reached = [len(values) for values in at_rung]
    tops = [
        (place, max(found.values(), key=lambda value: score(value, history.direction)))
        for place, found in enumerate(at_rung)
        if found
    ]
    parts = [
        Points(name, colour, *_columns(kinds[name]), size=12.0 if symbol == "star" else 8.0,
               symbol=symbol, texts=tuple(text for _, _, text in kinds[name]))
        for name, (colour, symbol) in _KINDS.items() if kinds[name]
    ]  # fmt: skip
    best = Line(
        "best at the rung", GREY, tuple(float(p) for p, _ in tops), tuple(v for _, v in tops),
        dash=True, width=1.2,
    )  # fmt: skip
    return Chart(
        title="Rungs",
        summary=_summary(steps, reached, factor, len(shown), len(curves)),
        x_title="Rung [report steps: trials that reached it]",
        y_title="Value",
        parts=(best, *parts) if tops else (),
        x_range=(-0.5, len(steps) - 0.5),
        x_ticks=tuple(
            (float(place), f"{step}: {number}")
            for place, (step, number) in enumerate(zip(steps, reached, strict=True))
        ),
    )


def _summary(steps: list[int], reached: list[int], factor: int, shown: int, trials: int) -> str:
    if not any(reached):
        return "no trial has reached a rung yet"
    flow = " → ".join(str(number) for number in reached)
    marks = ", ".join(str(step) for step in steps)
    words = f"{flow} trials at steps {marks}; each rung keeps one in {factor}"
    return words if shown == trials else f"{words}; the newest {shown} of {trials} trials"


def _kind(went_on: bool, planned: PlannedTrial | None) -> str:
    if went_on or planned is None:
        return "continued"
    ends = {
        "complete": "complete",
        "failed": "failed here",
        "retired": "pruned here",
    }
    return ends.get(planned.state, "waits" if planned.owner is None else "continues from here")


def _columns(
    points: list[tuple[float, float, str]],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(x for x, _, _ in points), tuple(y for _, y, _ in points)


def _whole(parameters: Mapping[str, object], name: str, otherwise: int) -> int:
    """A parameter of the policy, if it is a positive number."""
    found = parameters.get(name)
    return int(found) if isinstance(found, (int, float)) and math.isfinite(found) else otherwise
