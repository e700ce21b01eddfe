"""The command line: ``optuna-deadline create | worker | status | ...``."""

from __future__ import annotations

# Each module registers its commands.
from optuna_deadline.cli import (  # noqa: F401
    check,
    clean,
    create,
    demo,
    doctor,
    forecast,
    load_best,
    pool,
    simulate,
    slurm,
    status,
    steering,
    worker,
)
from optuna_deadline.cli.app import app

__all__ = ["app"]
