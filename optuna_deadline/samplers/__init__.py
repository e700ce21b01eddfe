"""Samplers for studies with a deadline."""

from optuna_deadline.samplers._deadline import DeadlineSampler

__all__ = ["DeadlineSampler"]
