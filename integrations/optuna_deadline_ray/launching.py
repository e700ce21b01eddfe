"""``launch``: a study on all the nodes of a Ray cluster, in one call."""

from __future__ import annotations

import math
import time
from pathlib import Path

import ray
from optuna.study import Study
from ray.autoscaler.sdk import request_resources

from optuna_deadline.allocation.database.opening import open_table, table_url
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.elastic import Result, agree, keep_all_checkpoints
from optuna_deadline.errors import DeadlineError
from optuna_deadline.options import StudyOptions, WorkerOptions
from optuna_deadline.rank.objective import Objective, source_of
from optuna_deadline.study.policy_choice import PolicyLike
from optuna_deadline.values.budgets import BudgetLike
from optuna_deadline.values.deadlines import DeadlineLike
from optuna_deadline.values.prices import PriceLike
from optuna_deadline_ray.fleet import AgentJob, Fleet
from optuna_deadline_ray.nodes import (
    bundles,
    check_some,
    nodes_to_release,
    nodes_with_slots,
    wanted_slots,
)

_LEFT_ALONE = 60.0  # seconds after the deadline
_LOOK = 0.5  # seconds between two polls of the cluster
_ASK_AGAIN = 30.0  # seconds: Ray's autoscaler may have been restarted


def launch(
    study: Study,
    objective: Objective | str,
    deadline: DeadlineLike | None = None,
    *,
    cpus: int | None = None,
    max_nodes: int | None = None,
    node_slots: int | None = None,
    policy: PolicyLike | None = None,
    budget: BudgetLike | None = None,
    price: PriceLike | None = None,
    checkpoints: str | Path | None = None,
    n_trials: int | None = None,
    address: str | None = None,
    worker: WorkerOptions = WorkerOptions(),
) -> Result:
    """Tune on a Ray cluster until the deadline.

    Each node has one agent, an actor that holds all of the node's GPUs; Ray restarts it if it
    dies. Nodes that join offer their slots. Trials of a node that dies resume elsewhere from their
    checkpoints.

    Args:
        study: An Optuna study on PostgreSQL; SQLite serves a cluster of one node.
        objective: The objective, or its place as "train.py:objective", on every node.
        cpus: CPU slots of each node, instead of its GPUs.
        max_nodes: Request as many nodes as the study's policy wants from Ray's autoscaler, up to
            this number, and release those that it does not want; None takes the nodes as they are.
        node_slots: GPUs of a node that Ray's autoscaler starts; by default as many as the largest
            present node has.
        policy: As for :func:`optuna_deadline.run`, like the deadline and those below.
        budget: The amount that may be spent.
        price: The price of a slot per hour; if it depends on the host type, each node has its own
            in the environment variable OPTUNA_DEADLINE_HOST_TYPE of its Ray process.
        checkpoints: A folder that all nodes share under one path, or a URL.
        n_trials: Maximum number of trials.
        address: Of the cluster, if ``ray.init`` was not called: "auto" by default.
        worker: The other options of each node's worker; Ray chooses its slots.

    Returns:
        The best model and where its checkpoint is.

    Raises:
        DeadlineError: An argument is invalid; the message says what to do.
    """
    if max_nodes is not None and max_nodes < 1:
        raise DeadlineError(f"max_nodes must be a number from 1, but got {max_nodes!r}.")
    if cpus is not None and cpus < 1:
        raise DeadlineError(f"cpus must be a number of slots from 1, but got {cpus!r}.")
    options = worker.with_given(cpus=cpus, checkpoints=checkpoints)
    cpus = options.cpus
    if options.gpus is not None or options.gpu_ids is not None:
        raise DeadlineError("Ray chooses the GPUs of each node: leave gpus and gpu_ids out.")
    asked_for = StudyOptions(
        deadline=deadline, policy=policy, n_trials=n_trials, budget=budget, price=price,
        max_slots=options.max_slots, keep_all=options.keep_all,
    )  # fmt: skip
    if not ray.is_initialized():
        ray.init(address=address or "auto", log_to_driver=True)
    nodes = nodes_with_slots(ray.nodes(), cpus)
    check_some(nodes, cpus, may_grow=bool(max_nodes and (cpus or node_slots)))
    if table_url(study, options.storage).get_backend_name() == "sqlite" and (
        len(nodes) > 1 or max_nodes
    ):
        raise DeadlineError(
            "SQLite serves one node only; use a PostgreSQL storage that all Ray nodes reach."
        )
    terms = agree(study, deadline, asked_for.given, storage=options.storage)
    if options.keep_all:
        keep_all_checkpoints(study)
    size = cpus or node_slots or max(node.slots for node in nodes)
    ceiling = (max_nodes or 0) * size
    rows = AllocationTable(open_table(study, options.storage), study.study_name, terms.study_id)
    fleet = Fleet(AgentJob(study, source_of(objective), options, ceiling, policy))
    asked = _AutoscalerRequest(size, "GPU" if cpus is None else "CPU") if max_nodes else None
    try:
        while fleet.result is None:
            present = nodes_with_slots(ray.nodes(), cpus)
            if asked is not None and not rows.orders("").settled:
                wanted = wanted_slots(rows, ceiling)
                asked.ask(wanted)
                enough = sum(node.slots for node in fleet.nodes) >= wanted
                fleet.keep(present, resting=enough)
                fleet.release_nodes(
                    nodes_to_release(fleet.nodes, rows.slots(), wanted), "not needed now"
                )
            else:
                fleet.keep(present)
            fleet.collect_results()
            if not fleet.nodes and rows.now() > rows.orders("").deadline + _LEFT_ALONE:
                raise DeadlineError(
                    "There was no Ray node at the deadline to end the study; call launch() again "
                    "once there is one."
                )
            time.sleep(_LOOK)
        return fleet.result
    finally:
        fleet.close()
        if asked is not None:
            asked.ask(0)


class _AutoscalerRequest:
    """The last request to Ray's autoscaler."""

    def __init__(self, size: int, kind: str) -> None:
        self._size = size
        self._kind = kind
        self._slots = -1
        self._at = -math.inf

    def ask(self, slots: int) -> None:
        """Send a request if it is new or the last one is old."""
        now = time.monotonic()
        if slots != self._slots or now - self._at > _ASK_AGAIN:
            request_resources(bundles=bundles(slots, self._size, self._kind))
            self._slots, self._at = slots, now
