"""Elastic studies: a worker with its planner in this process, until the study has ended."""

from optuna_deadline.elastic.arguments import (
    agree,
    extend,
    keep_all_checkpoints,
    preload,
    prepare,
)
from optuna_deadline.elastic.result import Result
from optuna_deadline.elastic.running import run
from optuna_deadline.elastic.worker import ElasticWorker

__all__ = [
    "ElasticWorker",
    "Result",
    "agree",
    "extend",
    "keep_all_checkpoints",
    "preload",
    "prepare",
    "run",
]
