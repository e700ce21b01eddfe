"""The run: a cluster, a study, a node that is killed, and a node that joins."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import ray
from optuna_deadline_ray import launch
from ray.cluster_utils import Cluster

from benchmarks.stretches import OBJECTIVE, following, read_stretches
from benchmarks.stretches.objective import LOGS
from benchmarks.support.postgres import EmbeddedPostgres
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.elastic import Result, agree
from optuna_deadline.options import WorkerOptions
from optuna_deadline.study.terms import Given

GPUS = 2  #: simulated GPUs of each node
_STORE = {"object_store_memory": 80 * 2**20}


@dataclass(frozen=True)
class Figures:
    """The result of the run, in seconds since the launch unless stated otherwise."""

    nodes: int
    slots: int
    cluster_up: float  #: seconds
    first_step: float
    all_slots: float | None  #: when every slot was used for the first time
    killed: float
    trials_hit: int
    steps_lost: int  #: steps that the affected trials trained twice
    back_after: float | None  #: seconds from the kill until the last of these trials trained
    added: float
    first_step_there: float | None  #: seconds from the added node's start to its first step
    slot_seconds_there: float
    trials: int
    best: float | None
    checkpoint_ok: bool
    overshoot: float


@contextmanager
def cluster_of(nodes: int, gpus: int = GPUS) -> Iterator[tuple[Cluster, list[Any]]]:
    """A head without slots, and a number of nodes with simulated GPUs, on this machine."""
    head = {"num_cpus": 1, "num_gpus": 0, "include_dashboard": False, **_STORE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        added = [cluster.add_node(num_cpus=1, num_gpus=gpus, **_STORE) for _ in range(nodes)]
        ray.init(address=cluster.address)
        yield cluster, added
    finally:
        ray.shutdown()
        cluster.shutdown()


def run(
    folder: Path,
    *,
    seconds: float,
    kill_at: float,
    add_at: float,
    nodes: int = 4,
    ttl: float = 30.0,
    grace: float = 15.0,
) -> Figures:
    """Run everything.

    Args:
        folder: The folder for checkpoints and logs.
        seconds: Seconds to the deadline.
        kill_at: Seconds from the launch to the kill.
        add_at: Seconds from the launch until a node joins.
        nodes: The initial number of nodes.
        ttl: The duration of leases.
        grace: The grace of leases.
    """
    logs = folder / "logs"
    logs.mkdir(parents=True)
    os.environ[LOGS] = str(logs)  # the nodes' processes inherit it
    began = time.monotonic()
    with EmbeddedPostgres() as server, cluster_of(nodes) as (cluster, members):
        up = time.monotonic() - began
        study = optuna.create_study(
            study_name="ray", storage=server.create_database("ray"), direction="maximize",
            sampler=optuna.samplers.RandomSampler(seed=1),
        )  # fmt: skip
        terms = agree(study, f"{seconds}s", Given(None, {"max_resource": 1000}))
        table = AllocationTable(open_table(study), "ray", terms.study_id, ttl=ttl, grace=grace)
        table.make_pool()
        launched, results = time.monotonic(), list[Result]()
        thread = threading.Thread(
            target=lambda: results.append(
                launch(
                    study,
                    OBJECTIVE,
                    checkpoints=folder / "checkpoints",
                    worker=WorkerOptions(dashboard=False),
                )
            )
        )
        thread.start()
        full = _when(lambda: _in_use(table) == nodes * GPUS, launched + kill_at)
        _sleep_until(launched + kill_at)
        victim = _hosts(table, members[0].node_id)
        cluster.remove_node(members[0], allow_graceful=False)
        killed = time.monotonic()
        _sleep_until(launched + add_at)
        new = cluster.add_node(num_cpus=1, num_gpus=GPUS, **_STORE)
        added = time.monotonic()
        there = ""
        while thread.is_alive():
            there = there or _hosts(table, new.node_id)
            thread.join(0.2)
        [result] = results
        trials = len(table.trials())
    stretches = read_stretches(logs)
    hit = [s for s in stretches if s.host == victim and killed - s.last < 1.0]
    after = {s.number: following(s, stretches) for s in hit}
    again = [s.begun - killed for s in after.values() if s is not None]
    begun_there = [s.begun for s in stretches if s.host == there]
    return Figures(
        nodes=nodes,
        slots=nodes * GPUS,
        cluster_up=round(up, 1),
        first_step=round(min(s.begun for s in stretches) - launched, 1),
        all_slots=None if full is None else round(full - launched, 1),
        killed=round(killed - launched, 1),
        trials_hit=len(hit),
        steps_lost=sum(
            s.trained_to + 1 - after_it.first
            for s in hit
            if (after_it := after[s.number]) is not None
        ),
        back_after=round(max(again), 1) if again else None,
        added=round(added - launched, 1),
        first_step_there=round(min(begun_there) - added, 1) if begun_there else None,
        slot_seconds_there=round(
            sum(s.slots * (s.last - s.begun) for s in stretches if s.host == there), 1
        ),
        trials=trials,
        best=result.value,
        checkpoint_ok=result.checkpoint_ok,
        overshoot=round(result.overshoot, 2),
    )


def _in_use(table: AllocationTable) -> int:
    return sum(slot.holder is not None for slot in table.slots())


def _hosts(table: AllocationTable, node: str) -> str:
    """The host name of a node's slots; None without slots."""
    return next((row.host for row in table.workers() if row.host.endswith(node[-8:])), "")


def _when(condition: Callable[[], bool], latest: float) -> float | None:
    while time.monotonic() < latest:
        if condition():
            return time.monotonic()
        time.sleep(0.2)
    return None


def _sleep_until(instant: float) -> None:
    time.sleep(max(0.0, instant - time.monotonic()))
