"""Whoever dies of two studies in one pool, what is left runs again soon, by virtual time."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from optuna_deadline.allocation.database.memory import MemoryDatabase
from optuna_deadline.allocation.records import Grant
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.planning.planner import Planner
from optuna_deadline.planning.pool_leader import PoolLeader
from optuna_deadline.policies.api import Pause, Plan, Run, Snapshot
from optuna_deadline.simulation.environment import CountedTrials

TTL, GRACE = 30.0, 15.0
POLL = 1.0
WORKERS = ((1, "x"), (1, "y"), (2, "x"), (2, "y"))  # study and host


class AsManyAsFit:
    """One slot for each trial, and as many trials as slots."""

    def plan(self, snapshot: Snapshot) -> Plan:
        """The oldest run."""
        alive = [trial.number for trial in snapshot.trials if trial.alive]
        room = snapshot.capacity
        runs = {n: Run(1, "fits") if i < room else Pause("waits") for i, n in enumerate(alive)}
        return Plan(orders=runs, start=max(0, room - len(alive)))


class Process:
    """A worker with its planner and leader, as far as the table knows it; it never trains."""

    def __init__(self, pool: Pool, study: int, host: str) -> None:
        self.id, self.study, self.host = f"{study}{host}", study, host
        self.table = MemoryTable(
            "pool", study, now=lambda: pool.now, deadline=1e6, ttl=TTL, grace=GRACE,
            database=pool.database,
        )  # fmt: skip
        self.table.register(self.id, host, 1, [], 2)
        self._now = lambda: pool.now
        self._leader = PoolLeader(self.table, "even", self.id, self._now)
        self._planner = Planner(
            pool.trials[study], self.table, AsManyAsFit(), direction="maximize",
            worker_id=self.id, clock=self._now,
        )  # fmt: skip
        self.held: dict[int, Grant] = {}
        self._renewed = pool.now

    def poll(self) -> None:
        """One look: lead, plan, renew, let go, take."""
        if self._now() - self._renewed >= TTL / 6:
            self.table.renew(self.id, [pair for g in self.held.values() for pair in g.slots])
            self._renewed = self._now()
        self._leader.tick()
        self._planner.tick()
        lines = self.table.orders(self.id).trials
        wanted = {line.number: line for line in lines if line.worker == self.id}
        for number in self.held.keys() - wanted.keys():
            self.table.release(self.id, self.held.pop(number), "paused", ended="pause")
        for number, line in wanted.items():
            free = self.table.free_slots(self.id)
            if line.owner is None and line.mode == "run" and free:
                grant = self.table.acquire(self.id, number, free[:1])
                if grant is not None:
                    self.held[number] = grant


class Pool:
    """Two studies with a worker each on two hosts of two slots."""

    def __init__(self, rng: random.Random) -> None:
        self.now = 1000.0
        self.database = MemoryDatabase()
        self.trials = {1: CountedTrials(), 2: CountedTrials()}
        self.processes: list[Process] = []
        for place in WORKERS:  # who comes first, and whose lease runs out when, is by chance
            self.processes.append(Process(self, *place))
            self.run(rng.randrange(9))
        rng.shuffle(self.processes)
        self.run(60 + rng.randrange(9))

    def run(self, seconds: float) -> None:
        """All poll once a second, one after the other."""
        for _ in range(round(seconds / POLL)):
            self.now += POLL
            for process in self.processes:
                process.poll()

    def idle(self) -> set[int]:
        """Slots that a live worker offers and that none holds."""
        live = {process.id for process in self.processes}
        return {
            slot.id
            for slot in self.processes[0].table.slots()
            if live & set(slot.offered_by) and slot.holder not in live
        }


DEATHS = [set(dead) for count in (1, 2, 3) for dead in combinations(range(len(WORKERS)), count)]


@pytest.mark.parametrize("dead", DEATHS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_whoever_dies_the_slots_of_the_living_are_in_use_again(dead: set[int], seed: int) -> None:
    """The leases of a leader, of planners and of slots run out side by side."""
    rng = random.Random(100 * seed + sum(1 << index for index in dead))
    pool = Pool(rng)
    assert pool.idle() == set()
    pool.processes = [p for i, p in enumerate(pool.processes) if i not in dead]
    pool.run(TTL + GRACE + 2 * POLL)  # the planner's look and the worker's
    assert pool.idle() == set()


def test_slots_of_a_newcomer_do_not_wait_for_trials_that_are_not_reaped_yet() -> None:
    """They cannot be had before; others start there meanwhile."""
    pool = Pool(random.Random(0))
    dead = [process for process in pool.processes if process.host == "x"]
    pool.processes = [process for process in pool.processes if process.host == "y"]
    lost = {(process.study, number) for process in dead for number in process.held}
    assert lost
    pool.run(TTL + POLL)  # their leases are over, and the reaper is not there yet
    newcomer = Process(pool, 1, "z")
    pool.processes.append(newcomer)
    pool.run(3 * POLL)
    assert len(newcomer.held) == 2
    assert not lost & {(newcomer.study, number) for number in newcomer.held}
    waiting = {line.number: line for line in newcomer.table.trials()}
    mine = [waiting[number] for study, number in lost if study == 1]
    assert {line.reason for line in mine} == {"waits until the lease of its dead worker is over"}
    pool.run(GRACE + 2 * POLL)
    assert pool.idle() == set()
    assert all(line.owner is None or line.owner != "1x" for line in newcomer.table.trials())
