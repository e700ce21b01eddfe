"""Pruners that know the deadline."""

from optuna_deadline.pruners._deadline import DeadlinePruner, find_deadline_pruner
from optuna_deadline.pruners._report import deadline_report

__all__ = ["DeadlinePruner", "deadline_report", "find_deadline_pruner"]
