"""The same figures in matplotlib; each function returns axes, as Optuna's do."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from optuna.study import Study

from optuna_deadline.history.reader import read_history
from optuna_deadline.simulation.comparison import Comparison
from optuna_deadline.visualization._allocation import chart_allocation, check_number
from optuna_deadline.visualization._budget import chart_budget
from optuna_deadline.visualization._chart import Area, Bars, Chart, ChartPart, Line, Points
from optuna_deadline.visualization._comparison import chart_comparison
from optuna_deadline.visualization._forecast import chart_forecast
from optuna_deadline.visualization._rungs import chart_rungs
from optuna_deadline.visualization._utilization import chart_utilization

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_MARKERS = {"circle": "o", "star": "*", "x": "x", "diamond": "D", "open": "o"}


def is_available() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def check_available() -> None:
    """Check that matplotlib is installed.

    Raises:
        ImportError: It is not; the message names the package to install.
    """
    if not is_available():
        raise ImportError("These figures need matplotlib: pip install matplotlib.")


def axes_of(chart: Chart) -> Axes:
    """Draw the chart on new axes."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5))
    for part in chart.parts:
        _draw(axes, part)
    for mark in chart.marks:
        _mark(axes, chart, mark.x, mark.words, mark.colour, ":" if mark.dotted else "--")
    axes.set_title(f"{chart.title}\n{chart.summary}", loc="left", fontsize="medium", pad=18)
    axes.set_xlabel(chart.x_title)
    axes.set_ylabel(chart.y_title)
    if chart.x_range is not None:
        axes.set_xlim(*chart.x_range)
    if chart.x_ticks:
        axes.set_xticks([at for at, _ in chart.x_ticks], [text for _, text in chart.x_ticks])
    if chart.y_ticks:
        axes.set_yticks([at for at, _ in chart.y_ticks], [text for _, text in chart.y_ticks])
    if chart.from_zero:
        axes.set_ylim(bottom=0)
    handles, names = axes.get_legend_handles_labels()
    if handles:
        axes.legend(
            handles, names, loc="upper left", bbox_to_anchor=(0, -0.15), ncols=4, fontsize="small",
            frameon=False,
        )  # fmt: skip
    figure.tight_layout()
    return axes


def _mark(axes: Axes, chart: Chart, x: float, words: str, colour: str, style: str) -> None:
    low, high = chart.x_range or axes.get_xlim()
    side = "right" if x > low + 0.7 * (high - low) else "left"
    axes.axvline(x, color=colour, linestyle=style, linewidth=1.2)
    axes.text(
        x, 1.01, words, color=colour, fontsize="small", ha=side, va="bottom",
        transform=axes.get_xaxis_transform(),
    )  # fmt: skip


def _draw(axes: Axes, part: ChartPart) -> None:
    if isinstance(part, Bars):
        axes.barh(
            [bar.row for bar in part.bars],
            [bar.length for bar in part.bars],
            left=[bar.start for bar in part.bars],
            height=part.height,
            color=part.colour,
            label=part.name,
        )
    elif isinstance(part, Line):
        options: dict[str, Any] = {
            "color": part.colour,
            "linewidth": part.width * 0.75,
            "linestyle": "--" if part.dash else "-",
            "alpha": part.opacity,
        }
        y = [float("nan") if value is None else value for value in part.y]
        label = part.name if part.legend else "_hidden"
        if part.steps:
            axes.step(part.x, y, where="post", label=label, **options)
        else:
            marker = "." if part.markers else None
            axes.plot(part.x, y, label=label, marker=marker, markersize=3, **options)
    elif isinstance(part, Points):
        hollow = {"facecolors": "none", "edgecolors": part.colour}
        paint: dict[str, Any] = hollow if part.symbol == "open" else {"color": part.colour}
        axes.scatter(
            part.x, part.y, s=part.size**2 / 2, marker=_MARKERS[part.symbol], label=part.name,
            zorder=3, **paint,
        )  # fmt: skip
    elif isinstance(part, Area):
        axes.fill_between(
            part.x, part.low, part.high, step="post" if part.steps else None,
            color=part.colour, alpha=part.opacity, linewidth=0,
            label=part.name if part.legend else "_hidden",
        )  # fmt: skip


def plot_allocation(
    study: Study, n_recent_trials: int | None = None, *, storage: str | None = None
) -> Axes:
    """See :func:`optuna_deadline.visualization.plot_allocation`; it shows no reasons."""
    check_number(n_recent_trials)
    check_available()
    return axes_of(chart_allocation(read_history(study, storage), n_recent_trials))


def plot_forecast(
    study: Study, n_recent_trials: int | None = None, *, storage: str | None = None
) -> Axes:
    """See :func:`optuna_deadline.visualization.plot_forecast`."""
    check_number(n_recent_trials)
    check_available()
    return axes_of(chart_forecast(read_history(study, storage), n_recent_trials))


def plot_budget(study: Study, *, storage: str | None = None) -> Axes:
    """See :func:`optuna_deadline.visualization.plot_budget`."""
    check_available()
    return axes_of(chart_budget(read_history(study, storage)))


def plot_comparison(comparison: Comparison) -> Axes:
    """Plot the regrets of policies; see :func:`optuna_deadline.visualization.plot_comparison`."""
    check_available()
    return axes_of(chart_comparison(comparison))


def plot_utilization(study: Study, *, storage: str | None = None) -> Axes:
    """See :func:`optuna_deadline.visualization.plot_utilization`."""
    check_available()
    return axes_of(chart_utilization(read_history(study, storage)))


def plot_rungs(
    study: Study, n_recent_trials: int | None = None, *, storage: str | None = None
) -> Axes:
    """See :func:`optuna_deadline.visualization.plot_rungs`."""
    check_number(n_recent_trials)
    check_available()
    return axes_of(chart_rungs(read_history(study, storage), n_recent_trials))


__all__ = [
    "is_available",
    "plot_allocation",
    "plot_budget",
    "plot_comparison",
    "plot_forecast",
    "plot_rungs",
    "plot_utilization",
]
