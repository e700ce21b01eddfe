"""Plain PyTorch trials that pause, resume and change their number of slots at any step."""

from optuna_deadline_torch.loop import ElasticLoop
from optuna_deadline_torch.sampler import ElasticBatchSampler

__all__ = ["ElasticLoop", "ElasticBatchSampler"]
