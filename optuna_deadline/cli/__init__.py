"""The command line: ``optuna-deadline create | worker | pool | demo | simulate | dashboard``."""

from __future__ import annotations

# Each module registers its command; the order is that of the help.
from optuna_deadline.cli import create, dashboard, demo, pool, simulate, worker  # noqa: F401
from optuna_deadline.cli.app import app

__all__ = ["app"]
