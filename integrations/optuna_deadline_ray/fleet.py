"""One agent per node, as a Ray actor that holds the node's GPUs and is restarted by Ray."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ray
from optuna.study import Study
from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from optuna_deadline.cli.app import set_up_logging
from optuna_deadline.elastic import ElasticWorker, Result, agree
from optuna_deadline.errors import DeadlineError, SlotTaken
from optuna_deadline.options import WorkerOptions
from optuna_deadline.rank.objective import ObjectiveSource
from optuna_deadline.study.policy_choice import PolicyLike
from optuna_deadline.worker.devices import Offer
from optuna_deadline_ray.nodes import Node

_AGAIN = 1.0  # seconds until slots that were taken are requested again


@dataclass(frozen=True)
class AgentJob:
    """The arguments of each node's agent."""

    study: Study
    source: ObjectiveSource
    options: WorkerOptions  #: without CPU slots, the node's GPUs are the slots
    ceiling: int = 0  #: slots that the cluster may have
    policy: PolicyLike | None = None  #: if it is an object


class NodeAgent:
    """Runs in the actor's process.

    Args:
        job: The arguments.
        host: The name of the node's slots in the table.
    """

    def __init__(self, job: AgentJob, host: str) -> None:
        os.environ["OPTUNA_DEADLINE_HOST"] = host
        set_up_logging()
        source = job.source
        if not os.path.isdir(source.folder):
            source = replace(source, folder="")  # the driver's own folder does not exist here
        cpus = job.options.cpus
        offer = Offer(gpus=_gpus()) if cpus is None else Offer(cpus=cpus)
        # Its ranks set their visible devices by the GPUs' own numbers.
        self._worker = ElasticWorker(
            job.study,
            source,
            agree(job.study, None, storage=job.options.storage),
            job.options,
            offer=offer,
            policy=job.policy,
            ceiling=job.ceiling,
        )

    def work(self) -> Result:
        """Train until the study is settled or :meth:`leave` is called.

        After a restart by Ray, the lease of the former agent may still be valid.
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
        """Save the trials and release the slots."""
        self._worker.leave(why)


def start(job: AgentJob, node: Node) -> tuple[ActorHandle[Any], Any]:
    """Start a node's agent; returns its handle and the reference to its result."""
    resources = {"num_gpus": node.slots, "num_cpus": 0}
    if job.options.cpus is not None:
        resources = {"num_cpus": node.slots}
    actor = (
        ray.remote(NodeAgent)
        .options(
            **resources,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=2,  # so that leave() is called while it works
        )
        .remote(job, node.host)
    )
    return actor, actor.work.remote()


def _gpus() -> tuple[int, ...]:
    ids = ray.get_runtime_context().get_accelerator_ids()["GPU"]
    return tuple(sorted(int(index) for index in ids))


_logger = logging.getLogger("optuna_deadline")

_LEAVE_SECONDS = 40.0  # seconds for trials to be saved


@dataclass
class _RunningAgent:
    node: Node
    actor: Any
    work: Any
    leaving: bool = False


class Fleet:
    """The agents of a study.

    Args:
        job: Their arguments.
    """

    def __init__(self, job: AgentJob) -> None:
        self._job = job
        self._members: dict[str, _RunningAgent] = {}
        self._resting: set[str] = set()  # nodes that the study did not want
        self.result: Result | None = None  #: whether the study is settled

    @property
    def nodes(self) -> list[Node]:
        """Nodes with an agent that stays."""
        return [m.node for m in self._members.values() if not m.leaving]

    def keep(self, present: Sequence[Node], resting: bool = False) -> None:
        """Start agents on new nodes; forget those of dead nodes.

        Args:
            present: The live nodes.
            resting: Whether released nodes stay without an agent.
        """
        alive = {node.id for node in present}
        for member in [m for m in self._members.values() if m.node.id not in alive]:
            _end(member)
            _logger.warning(
                "Ray node %s has died; its trials resume elsewhere when their leases expire.",
                member.node.host,
            )
            del self._members[member.node.id]
        if not resting:
            self._resting.clear()
        for node in present:
            if node.id not in self._members and node.id not in self._resting:
                _logger.info("Ray node %s brings %d slots.", node.host, node.slots)
                self._members[node.id] = _RunningAgent(node, *start(self._job, node))

    def collect_results(self) -> None:
        """Collect the results of agents that have ended.

        Raises:
            DeadlineError: An agent cannot work; the message says what to do.
        """
        if not self._members:
            return
        by_work = {m.work: m for m in self._members.values()}
        done, _ = ray.wait(list(by_work), num_returns=len(by_work), timeout=0)
        for work in done:
            member = by_work[work]
            del self._members[member.node.id]
            try:
                result = ray.get(work)
            except RayTaskError as error:
                if isinstance(error.cause, DeadlineError):
                    raise error.cause from None
                raise
            except RayError as error:  # its node is dying; otherwise another one is started
                _logger.warning("The agent of %s was lost: %s", member.node.host, _line(error))
                continue
            finally:
                _end(member)
            if result.settled:
                if self.result is None or result.checkpoint_ok:
                    self.result = result
            else:
                self._resting.add(member.node.id)

    def release_nodes(self, nodes: Collection[Node], why: str) -> None:
        """Let the agents of some nodes save, release their slots, and end."""
        for node in nodes:
            member = self._members[node.id]
            if not member.leaving:
                _logger.info("Ray node %s is not needed now.", node.host)
                member.actor.leave.options(max_task_retries=0).remote(why)
                member.leaving = True

    def close(self) -> None:
        """Stop all agents."""
        self.release_nodes(self.nodes, "the launch has ended")
        end = time.monotonic() + _LEAVE_SECONDS
        works = [m.work for m in self._members.values()]
        if works:
            with suppress(RayError):
                ray.wait(works, num_returns=len(works), timeout=max(0.0, end - time.monotonic()))
        for member in self._members.values():
            _end(member)
        self._members.clear()


def _end(member: _RunningAgent) -> None:
    """End it without a restart by Ray."""
    with suppress(RayError):
        ray.kill(member.actor, no_restart=True)


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
