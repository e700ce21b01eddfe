"""Callbacks for ``study.optimize``."""

from optuna_deadline.callbacks._gate import DeadlineGate

__all__ = ["DeadlineGate"]
