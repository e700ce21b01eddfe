"""Seer: the shape of a successive halving, found within a deadline and a budget."""

from optuna_deadline.policies.seer.policy import Seer

__all__ = ["Seer"]
