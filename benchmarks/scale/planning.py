"""CPU time of each study's planner and the pool's leader, on rows in memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.planner import draw
from benchmarks.scale.situation import STEPS, Situation
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.planning.placement.slot_assignment import assign_shares
from optuna_deadline.planning.planner import Planner
from optuna_deadline.planning.pool_leader import PoolLeader, read_pool
from optuna_deadline.policies.api import Plan, Policy, Snapshot
from optuna_deadline.policies.pool.fair_share import whole_slots
from optuna_deadline.policies.registry import make_divider
from optuna_deadline.simulation.environment import CountedTrials
from optuna_deadline.study import policy_choice

DIVIDERS = ("even", "fair")


@contextmanager
def cpu() -> Iterator[list[float]]:
    """Append the CPU milliseconds of the block."""
    took: list[float] = []
    began = time.process_time()
    yield took
    took.append(1e3 * (time.process_time() - began))


@dataclass
class Timed:
    """A policy that records its CPU time."""

    policy: Policy
    ms: list[float] = field(default_factory=list)

    def plan(self, snapshot: Snapshot) -> Plan:
        """The policy's plan."""
        with cpu() as took:
            plan = self.policy.plan(snapshot)
        self.ms += took
        return plan


def make_planner(
    table: AllocationTable, policy: Policy, me: str, trials: int, clock: Callable[[], float]
) -> Planner:
    """A study's planner with a table of a number of trials."""
    return Planner(
        CountedTrials(opened=trials),
        table,
        policy,
        direction="maximize",
        worker_id=me,
        clock=clock,
        is_intact=lambda checkpoint: True,
    )


def time_planners(found: Situation, policy: str, studies: int) -> dict[str, Any]:
    """The first tick, a tick without news, and one after news of all trials, of some studies.

    The result is the median over studies; the second and third tick are the minimum of three.
    """
    first, idle, news, thought = [], [], [], []
    for study in list(found.tables)[:studies]:
        timed = Timed(policy_choice.make(policy, {"max_resource": STEPS}))
        count = len(found.tables[study].trials())
        me = found.planner_of(study)
        planner = make_planner(found.tables[study], timed, me, count, lambda: found.now)
        with cpu() as took:
            planner.tick()
        first += took
        after, quiet = [], []
        for _ in range(3):
            found.now += 1.0
            found.report_once(study)
            timed.ms.clear()
            with cpu() as took:
                planner.tick()
            after.append((took[0], sum(timed.ms)))
            while planner.tick():
                pass
            with cpu() as took:
                planner.tick()
            quiet += took
        news.append(min(after)[0])
        thought.append(min(after)[1])
        idle.append(min(quiet))
    return {
        "policy": policy,
        "first_ms": statistics.median(first),
        "news_ms": statistics.median(news),
        "of_that_policy_ms": statistics.median(thought),
        "idle_ms": statistics.median(idle),
    }


def time_leader(found: Situation, divider: str) -> dict[str, Any]:
    """The parts of the pool's division, and a whole tick; the minimum of three."""
    table = found.tables[1]
    read, divide, dealt, whole = [], [], [], []
    for _ in range(3):
        with cpu() as took:
            reading = read_pool(table)
        read += took
        chosen = make_divider(divider)
        with cpu() as took:
            shares = whole_slots(reading.snapshot, chosen.rates(reading.snapshot))
        divide += took
        most = {study.study_id: study.most for study in reading.snapshot.studies}
        with cpu() as took:
            assign_shares(shares, most, reading.slots, reading.reach)
        dealt += took
    leader = PoolLeader(table, divider, found.planner_of(1), lambda: found.now)
    for _ in range(2):
        found.now += 1.0
        with cpu() as took:
            leader.tick()
        whole += took
    return {
        "divider": divider,
        "read_ms": min(read),
        "divide_ms": min(divide),
        "deal_ms": min(dealt),
        "tick_ms": min(whole),
    }


def time_policy(policy: str, trials: int, slots: int) -> float:
    """Milliseconds of a plan for one study with a whole pool; the minimum of two."""
    times = []
    for seed in range(2):
        snapshot = draw(trials, slots, seed)
        chosen = policy_choice.make(policy, {"max_resource": STEPS})
        with cpu() as took:
            chosen.plan(snapshot)
        times += took
    return min(times)
