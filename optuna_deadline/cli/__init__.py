"""The command line: ``optuna-deadline create | worker | status | ...``."""

from __future__ import annotations

# Each module registers its commands.
from optuna_deadline.cli import (  # noqa: F401
    check,
    create,
    dashboard,
    demo,
    doctor,
    events,
    extend,
    forecast,
    load_best,
    metrics,
    pool,
    price,
    run,
    simulate,
    slurm,
    status,
    steering,
    stop,
    worker,
)
from optuna_deadline.cli.app import app

__all__ = ["app"]
