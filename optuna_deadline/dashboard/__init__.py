"""Figures, notes and columns in optuna-dashboard, and a live page beside it."""

from importlib.util import find_spec


def is_wanted(choice: bool | None) -> bool:
    """Whether to update optuna-dashboard: the given choice, else whether it is installed."""
    return find_spec("optuna_dashboard") is not None if choice is None else choice
