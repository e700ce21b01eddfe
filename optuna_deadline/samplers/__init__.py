"""Samplers for studies with a deadline."""

from optuna_deadline.samplers._deadline import DeadlineSampler
from optuna_deadline.samplers._prospects import Situation
from optuna_deadline.samplers._warm_start import check_earlier, winners

__all__ = ["DeadlineSampler", "Situation", "check_earlier", "winners"]
