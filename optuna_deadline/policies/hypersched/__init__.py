"""HyperSched: our reconstruction."""

from optuna_deadline.policies.hypersched.policy import HyperSched

__all__ = ["HyperSched"]
