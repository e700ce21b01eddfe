"""FreezeThaw: the default policy."""

from optuna_deadline.policies.freeze_thaw.policy import FreezeThaw

__all__ = ["FreezeThaw"]
