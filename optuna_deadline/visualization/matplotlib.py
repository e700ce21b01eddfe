"""The same figures by matplotlib; each function returns its axes, as Optuna's do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optuna.study import Study

from optuna_deadline.history.reader import read_history
from optuna_deadline.visualization._allocation import chart_allocation, check_number
from optuna_deadline.visualization._budget import chart_budget
from optuna_deadline.visualization._drawing import (
    axes_of,
    check_available,
    is_available,
)
from optuna_deadline.visualization._forecast import chart_forecast
from optuna_deadline.visualization._rungs import chart_rungs
from optuna_deadline.visualization._utilization import chart_utilization

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_allocation(
    study: Study, n_recent_trials: int | None = None, *, table: str | None = None
) -> Axes:
    """See :func:`optuna_deadline.visualization.plot_allocation`; reasons are left out."""
    check_number(n_recent_trials)
    check_available()
    return axes_of(chart_allocation(read_history(study, table), n_recent_trials))


def plot_forecast(
    study: Study, n_recent_trials: int | None = None, *, table: str | None = None
) -> Axes:
    """See :func:`optuna_deadline.visualization.plot_forecast`."""
    check_number(n_recent_trials)
    check_available()
    return axes_of(chart_forecast(read_history(study, table), n_recent_trials))


def plot_budget(study: Study, *, table: str | None = None) -> Axes:
    """See :func:`optuna_deadline.visualization.plot_budget`."""
    check_available()
    return axes_of(chart_budget(read_history(study, table)))


def plot_utilization(study: Study, *, table: str | None = None) -> Axes:
    """See :func:`optuna_deadline.visualization.plot_utilization`."""
    check_available()
    return axes_of(chart_utilization(read_history(study, table)))


def plot_rungs(
    study: Study, n_recent_trials: int | None = None, *, table: str | None = None
) -> Axes:
    """See :func:`optuna_deadline.visualization.plot_rungs`."""
    check_number(n_recent_trials)
    check_available()
    return axes_of(chart_rungs(read_history(study, table), n_recent_trials))


__all__ = [
    "is_available",
    "plot_allocation",
    "plot_budget",
    "plot_forecast",
    "plot_rungs",
    "plot_utilization",
]
