"""Pruners that know the deadline."""

from optuna_deadline.pruners._deadline import DeadlinePruner, find_deadline_pruner

__all__ = ["DeadlinePruner", "find_deadline_pruner"]
