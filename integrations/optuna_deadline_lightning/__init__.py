"""Lightning trials that pause, resume and change their number of slots without losing a step."""

import lightning
from optuna_deadline_torch.sampler import ElasticBatchSampler

if tuple(map(int, lightning.__version__.split(".")[:2])) < (2, 6):
    raise ImportError(
        f"Lightning {lightning.__version__} does not resume a training within an epoch: install"
        " lightning>=2.6."
    )

from optuna_deadline_lightning.callback import DeadlineCallback
from optuna_deadline_lightning.checkpoint_io import AtomicCheckpointIO

__all__ = ["DeadlineCallback", "ElasticBatchSampler", "AtomicCheckpointIO"]
