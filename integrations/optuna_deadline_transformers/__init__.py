"""Hugging Face's ``Trainer`` under a deadline: trials pause, resume and change their slots."""

from optuna_deadline_transformers.callback import DeadlineCallback

__all__ = ["DeadlineCallback"]
