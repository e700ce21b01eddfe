"""Stores and workers that are wrong in one way each: the tests must be able to fail.

Each is the smallest change that takes one guard away.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from model import ModelWorker, Ranks

from optuna_deadline.allocation.memory.state import MemoryPool, MemoryStudy, MemoryTenant
from optuna_deadline.allocation.memory.store import MemoryTable
from optuna_deadline.allocation.records import Grant, NewReport, Renewal, Slot
from optuna_deadline.checkpoints.files import Checkpoint

Others = Mapping[str, Sequence[int]] | None


class RenewsByWorkerName(MemoryTable):
    """No fence, and a restarted process is taken for the one before."""

    def renew(self, worker_id: str, held: Collection[tuple[int, int]]) -> Renewal:
        slots = self.state.slots
        rows = [(slots[slot].holder, slot, slots[slot].fence) for slot, _ in held]
        mine = [
            (slot, fence) for who, slot, fence in rows if who and _name(who) == _name(worker_id)
        ]
        for holder, slot, fence in rows:
            if (slot, fence) in mine and holder is not None:
                super().renew(holder, [(slot, fence)])
        return replace(
            super().renew(worker_id, []), kept=frozenset(p for p in held if p[0] in dict(mine))
        )


class RenewsByHolder(MemoryTable):
    """No fence: a slot that came back to the same process counts as never gone."""

    def renew(self, worker_id: str, held: Collection[tuple[int, int]]) -> Renewal:
        slots = self.state.slots
        mine = [pair for pair in held if slots[pair[0]].holder == worker_id]
        now = super().renew(worker_id, [(slot, slots[slot].fence) for slot, _ in mine])
        return replace(now, kept=frozenset(mine))


class ReleasesByOwner(MemoryTable):
    """No fence: a release that arrives late ends the next segment."""

    def release(self, worker_id: str, grant: Grant, outcome: str, **how: object) -> bool:
        line = self.state.studies[self.study_id].trials[grant.number]
        slots = tuple((slot, self.state.slots[slot].fence) for slot, _ in grant.slots)
        current = replace(grant, fence=line.fence, slots=slots)
        return super().release(worker_id, current, outcome, **how)  # type: ignore[arg-type]


class DisownsByOwner(MemoryTable):
    """No fence: what the worker runs now is taken for what it never heard of."""

    def cancel_grant(self, worker_id: str, number: int, fence: int) -> bool:
        line = self.state.studies[self.study_id].trials[number]
        return super().cancel_grant(worker_id, number, line.fence)


class ReapsWithoutGrace(MemoryTable):
    """A killed rank still sits on the slot when the next one comes."""

    early = 0.0

    def reap(self) -> int:
        pool = self.state.pools[self.pool]
        grace, pool.grace = pool.grace, -self.early
        try:
            return super().reap()
        finally:
            pool.grace = grace


class ReapsBeforeTheEnd(ReapsWithoutGrace):
    """A lease is taken away while its holder still trusts in it."""

    early = 10.0


class CountsSlots(MemoryTable):
    """As many as are free are granted, whichever they are."""

    def acquire(
        self, worker_id: str, number: int, slot_ids: Sequence[int], others: Others = None
    ) -> Grant | None:
        study = self.state.studies[self.study_id]
        line = study.trials.get(number)
        if (
            line is None
            or line.owner is not None
            or (line.mode, line.worker) != ("run", worker_id)
        ):
            return None
        free = [row for row in self.slots() if row.holder is None]
        if line.slots != len(slot_ids) or len(free) < len(slot_ids):
            return None
        return self._grant(
            worker_id, number, [self.state.slots[slot] for slot in slot_ids], self.now()
        )


class GrantsAgain(MemoryTable):
    """A repeated call gets a second grant for what the first one took."""

    def acquire(
        self, worker_id: str, number: int, slot_ids: Sequence[int], others: Others = None
    ) -> Grant | None:
        line = self.state.studies[self.study_id].trials.get(number)
        if line is not None and line.owner == worker_id:
            rows = [self.state.slots[slot] for slot in slot_ids]
            return self._grant(worker_id, number, rows, self.now())
        return super().acquire(worker_id, number, slot_ids, others)


class PlansWithoutTerm(MemoryTable):
    """A planner that was frozen overwrites its successor's plan."""

    def _guard_planner(self, worker_id: str, term: int) -> MemoryTenant:
        return self.state.tenants[self.pool, self.study_id]


class SavesWithoutFence(MemoryTable):
    """A zombie's checkpoint becomes the trial's newest."""

    def add_checkpoint(
        self, worker_id: str, grant: Grant, *new: Checkpoint, reports: Sequence[NewReport] = ()
    ) -> list[Path]:
        self._open = True
        try:
            return super().add_checkpoint(worker_id, grant, *new, reports=reports)
        finally:
            self._open = False

    def _guard(self, worker_id: str, grant: Grant) -> MemoryStudy:
        if getattr(self, "_open", False):
            return self.state.studies[self.study_id]
        return super()._guard(worker_id, grant)


class LendsToAnybody(MemoryTable):
    """Whoever offers a free slot takes it, whatever the pool's leader wants."""

    def _may_take(self, worker_id: str, row: Slot) -> bool:
        return worker_id in self.state.offers[row.id] and row.holder is None


class LendsWithoutTerm(MemoryTable):
    """A leader that was frozen divides the pool once more."""

    def _guard_leader(self, worker_id: str, term: int) -> MemoryPool:
        return self.state.pools[self.pool]


class GrantsTheHeld(MemoryTable):
    """A plan from before the request is carried out."""

    def acquire(
        self, worker_id: str, number: int, slot_ids: Sequence[int], others: Others = None
    ) -> Grant | None:
        study = self._study
        if study is not None and number in study.trials:
            self._put(study.trials[number], held=None)
        return super().acquire(worker_id, number, slot_ids, others)


class GrantsTheDrained(MemoryTable):
    """Only the planner knows of it."""

    def _is_drained(self, worker_id: str) -> bool:
        return False


class WithoutWatchdog(ModelWorker):
    """Ranks of a frozen agent train on."""

    has_watchdog = False


class NegativeMargin(ModelWorker):
    """Trust outlasts the lease."""

    margin = -10.0


class TrustsFromTheAnswer(ModelWorker):
    """A slow answer makes trust outlast the lease."""

    def trust(self, sent: float, answered: float) -> None:
        super().trust(answered, answered)


class LaunchesUnchecked(ModelWorker):
    """Frozen between grant and launch, it starts ranks on slots that went to somebody else."""

    def may_launch(self) -> bool:
        return True


class ForgetsLostGrants(ModelWorker):
    """What it was granted and never heard of is held for ever: nobody is hurt, nothing runs."""

    def follow(self, obey: bool = True) -> None:
        disown, self.table.cancel_grant = self.table.cancel_grant, lambda *_: False  # type: ignore[method-assign]
        try:
            super().follow(obey)
        finally:
            self.table.cancel_grant = disown  # type: ignore[method-assign]


class KeepsLostRanks(ModelWorker):
    """It hears that its slots are gone, and does nothing."""

    has_watchdog = False

    def lose(self, ranks: Ranks) -> None:
        ranks.lost = True


STORES: tuple[type[MemoryTable], ...] = (
    RenewsByWorkerName,
    RenewsByHolder,
    ReleasesByOwner,
    DisownsByOwner,
    ReapsWithoutGrace,
    ReapsBeforeTheEnd,
    CountsSlots,
    GrantsAgain,
    PlansWithoutTerm,
    SavesWithoutFence,
)
#: What one study alone cannot find out.
SHARING: tuple[type[MemoryTable], ...] = (LendsToAnybody, LendsWithoutTerm)
#: What nobody finds out as long as nobody asks for anything.
ASKING: tuple[type[MemoryTable], ...] = (GrantsTheHeld, GrantsTheDrained)
WORKERS: tuple[type[ModelWorker], ...] = (
    WithoutWatchdog,
    NegativeMargin,
    TrustsFromTheAnswer,
    LaunchesUnchecked,
    ForgetsLostGrants,
    KeepsLostRanks,
)


def _name(me: str) -> str:
    """What every restart of a worker has in common."""
    return me.partition(".")[0]
