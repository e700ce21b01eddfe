"""The regrets of policies in simulated studies, with their standard errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optuna_deadline.simulation.comparison import Comparison
from optuna_deadline.visualization import _plotly
from optuna_deadline.visualization._chart import BLUE, GREY, Chart, Line, Points

if TYPE_CHECKING:
    import plotly.graph_objects as go


def plot_comparison(comparison: Comparison) -> go.Figure:
    """Plot the mean regret of each policy in each family of curves; less is better.

    Args:
        comparison: What :func:`optuna_deadline.simulation.compare` returned.

    Returns:
        A :class:`plotly.graph_objects.Figure`.

    Raises:
        ImportError: Plotly is not installed.
    """
    _plotly.check_available()
    return _plotly.figure_of(chart_comparison(comparison))


def chart_comparison(comparison: Comparison) -> Chart:
    """The chart of :func:`plot_comparison`, the first row on top."""
    rows = comparison.rows[::-1]
    several = len({row.family for row in rows}) > 1
    names = [f"{row.family}: {row.policy}" if several else row.policy for row in rows]
    bars: list[Line] = []
    for place, row in enumerate(rows):
        if (error := row.regret.error) is not None:
            ends = row.regret.mean - error, row.regret.mean + error
            heights = float(place), float(place)
            bars.append(Line("standard error", GREY, ends, heights, legend=not bars))
    best = min(comparison.rows, key=lambda row: row.regret.mean)
    points = Points(
        "mean",
        BLUE,
        tuple(row.regret.mean for row in rows),
        tuple(float(place) for place in range(len(rows))),
        texts=tuple(str(row.regret) for row in rows),
    )
    return Chart(
        title="Regret",
        summary=f"{comparison.title}; {best.policy} has the lowest regret ({best.regret})",
        x_title="Regret, a mean over the studies",
        y_title="",
        parts=(*bars, points),
        y_ticks=tuple((float(place), name) for place, name in enumerate(names)),
    )
