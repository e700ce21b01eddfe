"""DeadlinePruner and its helpers, from the package optuna-deadline."""

from optuna_deadline import DeadlineGate, DeadlinePruner, best, out_of_time

__all__ = ["DeadlinePruner", "DeadlineGate", "best", "out_of_time"]
