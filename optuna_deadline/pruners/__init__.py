"""Pruners that know the deadline."""

from optuna_deadline.pruners._deadline import DeadlinePruner
from optuna_deadline.pruners._report import deadline_report
from optuna_deadline.pruners._wrapped import find_deadline_pruner

__all__ = ["DeadlinePruner", "deadline_report", "find_deadline_pruner"]
