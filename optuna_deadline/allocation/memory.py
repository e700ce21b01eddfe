"""The allocation table in memory: the same promises for the threads of one process.

For simulations and tests: nothing survives the process, and a transition costs microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from optuna_deadline.allocation.membership import taken_already
from optuna_deadline.allocation.memory_leases import MemoryLeases
from optuna_deadline.allocation.memory_state import (
    MemoryPool,
    MemoryState,
    MemoryStudy,
    changed,
)
from optuna_deadline.allocation.records import Grant, ReportRow, Slot, Worker
from optuna_deadline.allocation.store import GRACE, KEPT_CHECKPOINTS, TTL, AllocationStore
from optuna_deadline.allocation.writes import kept_ids, none_if_nan
from optuna_deadline.checkpoints import Checkpoint


class MemoryTable(MemoryLeases):
    """One pool's table for one study, in memory.

    Args:
        pool: The pool's name.
        study_id: The study's id.
        now: The time in seconds.
        started: When the study began.
        deadline: When it ends.
        ttl: Seconds that a lease lives without renewal; the pool's first worker fixes it.
        grace: Seconds after a lease's end before anybody may reap it.
        state: The rows of another table, to share its slots and studies.
    """

    def __init__(
        self,
        pool: str = "pool",
        study_id: int = 1,
        *,
        now: Callable[[], float],
        started: float = 0.0,
        deadline: float = math.inf,
        ttl: float = TTL,
        grace: float = GRACE,
        state: MemoryState | None = None,
    ) -> None:
        super().__init__(state or MemoryState(), pool, study_id, ttl, grace, now)
        with self._lock:
            self.state.studies.setdefault(study_id, MemoryStudy(started, deadline))

    # Membership.

    def register(
        self, me: str, host: str, pid: int, devices: Sequence[str], cpus: int
    ) -> list[Slot]:
        """Join the pool with devices and CPU shares."""
        with self._lock:
            now, state = self.now(), self.state
            law = state.pools.setdefault(self.pool, MemoryPool(self.ttl, self.grace))
            self.ttl, self.grace = law.ttl, law.grace
            names = self._choose(me, host, devices, cpus, now)
            state.workers[me] = Worker(me, self.pool, host, pid, "live", now + self.ttl)
            state.worked_on[me] = self.study_id
            for name in names:
                self._offer(me, host, name)
            self._event("register", worker=me, host=host, devices=names)
            return [row for row in self.slots() if row.provider == me]

    def _choose(
        self, me: str, host: str, devices: Sequence[str], cpus: int, now: float
    ) -> list[str]:
        live = {row.id: row for row in self._live(now)}
        known = {row.device: row for row in self.state.slots.values() if row.host == host}
        mine = {name for name, row in known.items() if row.provider == me}
        taken = {name for name, row in known.items() if row.provider in live} - mine
        for name in devices:
            if name in taken:
                raise taken_already(name, host, self.pool, live[known[name].provider])
        shares = (f"cpu:{index}" for index in range(len(known) + cpus))
        free = sorted((name for name in shares if name not in taken), key=lambda n: n not in mine)
        return [*devices, *free[:cpus]]

    def _offer(self, me: str, host: str, name: str) -> None:
        for row in self.state.slots.values():
            if (row.host, row.device) == (host, name):
                self.state.slots[row.id] = changed(row, provider=me, pool=self.pool)
                return
        new = len(self.state.slots) + 1
        self.state.slots[new] = Slot(new, host, name, self.pool, me, 0, None, None, None)

    def leave(self, me: str) -> None:
        """Leave the pool; the leadership is handed on at once."""
        with self._lock:
            now, pool = self.now(), self._pool
            if me in self.state.workers:
                gone = changed(self.state.workers[me], state="left", lease=now)
                self.state.workers[me] = gone
            if pool is not None and pool.leader == me:
                pool.leader, pool.expires = None, now
            self._event("leave", worker=me)

    # Fenced writes of a running segment.

    def add_report(self, me: str, grant: Grant, step: int, value: float, trained: float) -> None:
        """Record a report."""
        with self._lock:
            study = self._guard(me, grant)
            key = (grant.number, step)
            if key not in study.steps:
                study.steps.add(key)
                new = len(study.reports) + 1
                study.reports.append(
                    ReportRow(new, *key, value, len(grant.slots), trained, self.now())
                )

    def add_checkpoint(self, me: str, grant: Grant, new: Checkpoint) -> list[Path]:
        """Commit a checkpoint; returns the files that may go."""
        with self._lock:
            study = self._guard(me, grant)
            self.state.checkpoint_ids += 1
            new = changed(
                new, number=grant.number, fence=grant.fence, value=none_if_nan(new.value)
            )
            rows = study.checkpoints.get(grant.number, [])
            rows = [pair for pair in rows if pair[1].path != new.path]
            rows.append((self.state.checkpoint_ids, new))
            kept = kept_ids([(i, row.value) for i, row in reversed(rows)], KEPT_CHECKPOINTS)
            study.checkpoints[grant.number] = [pair for pair in rows if pair[0] in kept]
            self._event(
                "checkpoint", number=grant.number, fence=grant.fence, worker=me, step=new.step
            )
            return [row.path for i, row in reversed(rows) if i not in kept]

    def set_progress(
        self,
        me: str,
        grant: Grant,
        *,
        startup: float | None,
        position_from: float | None,
        position_to: float | None,
        trained: float | None,
        horizon: int | None,
    ) -> None:
        """Say how far and how fast a segment has come."""
        with self._lock:
            study = self._guard(me, grant)
            key = (grant.number, grant.fence)
            study.running[key] = changed(
                study.running[key],
                startup=startup,
                position_from=position_from,
                position_to=position_to,
                trained=trained,
            )
            if horizon is not None:
                self._put(study.trials[grant.number], horizon=horizon)


_promises: type[AllocationStore] = MemoryTable  # checked by mypy
