"""Lightning trials that pause, resume and change their number of slots without losing a step."""

from optuna_deadline_torch.sampler import ElasticBatchSampler

from optuna_deadline_lightning.callback import DeadlineCallback
from optuna_deadline_lightning.checkpoint_io import AtomicCheckpointIO

__all__ = ["DeadlineCallback", "ElasticBatchSampler", "AtomicCheckpointIO"]
