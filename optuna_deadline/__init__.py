"""The best model by a deadline, from the GPUs there are: an extension of Optuna."""

from __future__ import annotations

from optuna_deadline.best import best
from optuna_deadline.budgets import Price
from optuna_deadline.callbacks import DeadlineGate
from optuna_deadline.elastic import Result, run
from optuna_deadline.out_of_time import out_of_time
from optuna_deadline.pruners import DeadlinePruner
from optuna_deadline.samplers import DeadlineSampler
from optuna_deadline.segments import Segment, SegmentEnd, segment

__all__ = [
    "DeadlinePruner",
    "DeadlineSampler",
    "DeadlineGate",
    "Price",
    "Result",
    "best",
    "out_of_time",
    "run",
    "Segment",
    "SegmentEnd",
    "segment",
]
