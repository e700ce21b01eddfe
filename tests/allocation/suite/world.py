"""A fresh store with a clock that only a test moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from optuna_deadline.allocation.records import Assignment, Event, Grant, OtherWorkers
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.files import Checkpoint

TTL = 30.0
GRACE = 15.0
STARTED = 1_000_000.0
DEADLINE = STARTED + 3600


class MakeStore(Protocol):
    """Opens a store on one database; the same pool and study mean the same rows."""

    def __call__(
        self,
        *,
        pool: str,
        study: str,
        started: float,
        deadline: float,
        ttl: float,
        grace: float,
        now: Callable[[], float],
    ) -> AllocationTable:
        """The store for one pool and one study, which is created if it does not exist."""


@dataclass
class AllocationWorld:
    """One database, its time, and helpers that set up a test's initial state.

    Args:
        make_store: Opens stores on the database.
        delete_study: Deletes a study by name, if the store supports it.
        one_host: Whether the database serves workers of one host only.
    """

    make_store: MakeStore
    delete_study: Callable[[str], None] | None = None
    time: float = STARTED
    deadline: float = DEADLINE
    one_host: bool = False
    _tables: dict[tuple[str, str], AllocationTable] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)

    def open(
        self, pool: str = "pool", study: str = "study", *, ttl: float = TTL, grace: float = GRACE
    ) -> AllocationTable:
        """A new store object, as in another process."""
        return self.make_store(
            pool=pool,
            study=study,
            started=STARTED,
            deadline=self.deadline,
            ttl=ttl,
            grace=grace,
            now=lambda: self.time,
        )

    def table(self, pool: str = "pool", study: str = "study") -> AllocationTable:
        """The store of a pool and study; leases live 30 s, graces 15 s."""
        if (pool, study) not in self._tables:
            self._tables[pool, study] = self.open(pool, study)
        return self._tables[pool, study]

    def join(
        self, worker_id: str, cpus: int = 2, host: str = "host", study: str = "study"
    ) -> list[int]:
        """Register a worker; returns its slots' ids."""
        table = self.table(study=study)
        return [slot.id for slot in table.register(worker_id, host, 1, [], cpus)]

    def plan(
        self,
        worker: str,
        slots: int = 1,
        number: int | None = None,
        study: str = "study",
        others: OtherWorkers = (),
    ) -> int:
        """Elect a planner that plans a trial, new by default, on a worker and others."""
        table = self.table(study=study)
        term = table.elect_planner("planner")
        assert term is not None
        if number is None:
            number = self._numbers.get(study, 0)
            self._numbers[study] = number + 1
            table.open_trial("planner", term, number, 100 + number)
        table.write_plan(
            "planner", term, [Assignment(number, "run", worker, slots, "test", others)]
        )
        return number

    def grant(self, worker_id: str, slots: int = 1, study: str = "study") -> Grant:
        """A worker that trains a new trial on some of its slots."""
        table = self.table(study=study)
        mine = table.free_slots(worker_id)
        granted = table.acquire(worker_id, self.plan(worker_id, slots, study=study), mine[:slots])
        assert granted is not None
        return granted

    def lose(self, grant: Grant) -> None:
        """Let the grant's lease and grace pass, then reap."""
        self.time += TTL + GRACE + 1
        assert self.table().reap() >= 1
        assert self.table().trials()[grant.number].owner is None


def checkpoint(grant: Grant, step: int, value: float | None = None) -> Checkpoint:
    """A checkpoint's row; no file is read or written."""
    path = Path(f"{grant.fence}-{step}.ckpt")
    return Checkpoint(grant.number, grant.fence, step, value, path, 1, "blake2b:00")


def changes_of_slots(events: list[Event]) -> dict[int, list[tuple[str, int]]]:
    """For each slot, its (kind, fence) in the order of the log."""
    found: dict[int, list[tuple[str, int]]] = {}
    for event in events:
        if event.kind in ("acquire", "release", "reap"):
            assert event.slot is not None and event.fence is not None
            found.setdefault(event.slot, []).append((event.kind, event.fence))
    return found


def assert_legal(events: list[Event]) -> None:
    """Per slot: acquire, then release or reap, then acquire; each raises the fence by one."""
    for slot, changes in changes_of_slots(events).items():
        assert [fence for _, fence in changes] == list(range(1, len(changes) + 1)), (slot, changes)
        taken = [kind == "acquire" for kind, _ in changes]
        assert taken == [index % 2 == 0 for index in range(len(taken))], (slot, changes)
    assert_whole(events)


def assert_whole(events: list[Event]) -> None:
    """Check that no gang ever holds only a part of its slots."""
    acquired: dict[tuple[int | None, int | None], list[str | None]] = {}
    for event in events:
        trial = event.study_id, event.number
        if event.kind == "acquire":
            acquired.setdefault(trial, []).append(event.worker)
        elif event.kind in ("start", "resume"):
            workers = acquired.pop(trial, [])
            others = event.detail.get("others", {})
            assert isinstance(others, dict)
            assert len(workers) == event.detail["slots"], (event, workers)
            assert {name: workers.count(name) for name in others} == others, (event, workers)
            assert set(workers) == {event.worker, *others}, (event, workers)
    assert not acquired, f"acquired and not started: {acquired}"
