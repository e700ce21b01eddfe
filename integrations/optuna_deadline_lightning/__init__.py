"""Lightning trials that pause, resume and change their number of slots without losing a step."""

from optuna_deadline_lightning.callback import DeadlineCallback
from optuna_deadline_lightning.checkpoint_io import AtomicCheckpointIO
from optuna_deadline_lightning.sampler import ElasticBatchSampler

__all__ = ["DeadlineCallback", "ElasticBatchSampler", "AtomicCheckpointIO"]
