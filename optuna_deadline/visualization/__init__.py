"""Figures of a study with a deadline, in the style of :mod:`optuna.visualization`."""

from __future__ import annotations

from optuna_deadline.visualization import matplotlib
from optuna_deadline.visualization._allocation import plot_allocation
from optuna_deadline.visualization._budget import plot_budget
from optuna_deadline.visualization._comparison import plot_comparison
from optuna_deadline.visualization._forecast import plot_forecast
from optuna_deadline.visualization._plotly import is_available
from optuna_deadline.visualization._rungs import plot_rungs
from optuna_deadline.visualization._utilization import plot_utilization

__all__ = [
    "is_available",
    "matplotlib",
    "plot_allocation",
    "plot_budget",
    "plot_comparison",
    "plot_forecast",
    "plot_rungs",
    "plot_utilization",
]
