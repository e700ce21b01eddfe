"""Elastic studies: a worker with its planner in this process, until the study has ended."""

from optuna_deadline.elastic.arguments import (
    agree,
    check,
    check_max_slots,
    keep_all_checkpoints,
    preload,
    prepare,
)
from optuna_deadline.elastic.result import Result
from optuna_deadline.elastic.running import run
from optuna_deadline.elastic.worker import CHECKPOINTS, ElasticWorker

__all__ = [
    "CHECKPOINTS",
    "ElasticWorker",
    "Result",
    "agree",
    "check",
    "check_max_slots",
    "keep_all_checkpoints",
    "preload",
    "prepare",
    "run",
]
