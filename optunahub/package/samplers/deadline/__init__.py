"""DeadlineSampler, from the package optuna-deadline."""

from optuna_deadline import DeadlineSampler

__all__ = ["DeadlineSampler"]
