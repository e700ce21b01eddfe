"""Samplers for studies with a deadline."""

from optuna_deadline.samplers._deadline import DeadlineSampler
from optuna_deadline.samplers._situation import Situation

__all__ = ["DeadlineSampler", "Situation"]
