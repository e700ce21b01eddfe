"""The command line: ``optuna-deadline create | worker | status | ...``."""

from optuna_deadline.cli.app import app

__all__ = ["app"]
