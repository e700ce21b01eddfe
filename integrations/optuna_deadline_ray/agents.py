"""The agent of a node as a Ray actor: it holds the node's GPUs, and Ray starts it again."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from optuna.study import Study
from ray.actor import ActorHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from optuna_deadline.cli.app import set_up_logging
from optuna_deadline.elastic import ElasticWorker, Result, agree
from optuna_deadline.errors import SlotTaken
from optuna_deadline.rank.objective import ObjectiveSource
from optuna_deadline.worker.devices import Offer
from optuna_deadline_ray.nodes import Node

_AGAIN = 1.0  # seconds until slots that were taken are asked for again


@dataclass(frozen=True)
class Job:
    """What each node's agent works at."""

    study: Study
    source: ObjectiveSource
    cpus: int | None  #: CPU slots; None where the node's GPUs are the slots
    options: dict[str, Any] = field(default_factory=dict)  #: of ElasticWorker


class NodeAgent:
    """Runs in the actor's process.

    Args:
        job: What to work at.
        host: The name of the node's slots in the table.
    """

    def __init__(self, job: Job, host: str) -> None:
        os.environ["OPTUNA_DEADLINE_HOST"] = host
        set_up_logging()
        source = job.source
        if not os.path.isdir(source.folder):
            source = replace(source, folder="")  # the driver's own folder is not here
        offer = Offer(gpus=_gpus()) if job.cpus is None else Offer(cpus=job.cpus)
        # Its ranks set what they see by the GPUs' own numbers.
        self._worker = ElasticWorker(
            job.study, source, agree(job.study, None, None, {}), offer=offer, **job.options
        )

    def work(self) -> Result:
        """Train until the study is settled or :meth:`leave` is called.

        Where Ray has started it again, the lease of the one before may run yet.
        """
        table = self._worker.table
        until = time.monotonic() + 2 * (table.ttl + table.grace)
        while True:
            try:
                return self._worker.run()
            except SlotTaken:
                if time.monotonic() > until:
                    raise
                time.sleep(_AGAIN)

    def leave(self, why: str) -> None:
        """Save the trials and give the slots back."""
        self._worker.leave(why)


def start(job: Job, node: Node) -> tuple[ActorHandle[Any], Any]:
    """Start a node's agent; returns its handle and the reference to what it returns."""
    resources = {"num_gpus": node.slots, "num_cpus": 0}
    if job.cpus is not None:
        resources = {"num_cpus": node.slots}
    actor = (
        ray.remote(NodeAgent)
        .options(
            **resources,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=2,  # it hears leave() while it works
        )
        .remote(job, node.host)
    )
    return actor, actor.work.remote()


def _gpus() -> tuple[int, ...]:
    ids = ray.get_runtime_context().get_accelerator_ids()["GPU"]
    return tuple(sorted(int(index) for index in ids))
