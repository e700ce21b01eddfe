"""Stores and workers that are wrong in one way each: the tests must be able to fail.

Each is the smallest change that takes one guard away.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from model import ModelWorker, Ranks

from optuna_deadline.allocation.database.text import listed
from optuna_deadline.allocation.database.transaction import Transaction
from optuna_deadline.allocation.records import Grant, NewReport, Renewal, Slot
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.checkpoints.storage import Location

Others = Mapping[str, Sequence[int]] | None


class Mutant(AllocationTable):
    """A table with a door to its rows."""

    def change(self, text: str, **params: object) -> None:
        """Change rows in a transaction of their own."""
        with self._tx() as tx:
            tx.run(text, **params)

    def fence_of(self, number: int) -> int:
        """The trial's fence."""
        return self.trials()[number].fence

    def slot(self, slot_id: int) -> Slot:
        """A slot's row."""
        return next(row for row in self.slots() if row.id == slot_id)

    def take(self, worker_id: str, number: int, slot_ids: Sequence[int]) -> Grant:
        """Grant slots, held or free, planned or not."""
        with self._tx() as tx:
            trial = self.trials()[number]
            rows = [self.slot(slot_id) for slot_id in sorted(slot_ids)]
            found = [(row.id, row.fence, row.device, row.host) for row in rows]
            self._begin_segment(
                tx, worker_id, trial, found, dict.fromkeys(slot_ids, worker_id), ()
            )
        pairs = tuple((row.id, row.fence + 1) for row in rows)
        devices = tuple(row.device for row in rows)
        return Grant(number, trial.trial_id, trial.fence + 1, pairs, devices)


class RenewsByWorkerName(Mutant):
    """No fence, and a restarted process is taken for the one before."""

    def renew(self, worker_id: str, held: Collection[tuple[int, int]]) -> Renewal:
        rows = [self.slot(slot) for slot, _ in held]
        mine = [row for row in rows if row.holder and _name(row.holder) == _name(worker_id)]
        for row in mine:
            assert row.holder is not None
            super().renew(row.holder, [(row.id, row.fence)])
        kept = {row.id for row in mine}
        return replace(
            super().renew(worker_id, []), kept=frozenset(pair for pair in held if pair[0] in kept)
        )


class RenewsByHolder(Mutant):
    """No fence: a slot that came back to the same process counts as never gone."""

    def renew(self, worker_id: str, held: Collection[tuple[int, int]]) -> Renewal:
        mine = [pair for pair in held if self.slot(pair[0]).holder == worker_id]
        now = super().renew(worker_id, [(slot, self.slot(slot).fence) for slot, _ in mine])
        return replace(now, kept=frozenset(mine))


class ReleasesByOwner(Mutant):
    """No fence: a release that arrives late ends the next segment."""

    def release(self, worker_id: str, grant: Grant, outcome: str, **how: object) -> bool:
        slots = tuple((slot, self.slot(slot).fence) for slot, _ in grant.slots)
        current = replace(grant, fence=self.fence_of(grant.number), slots=slots)
        return super().release(worker_id, current, outcome, **how)  # type: ignore[arg-type]


class DisownsByOwner(Mutant):
    """No fence: what the worker runs now is taken for what it never heard of."""

    def cancel_grant(self, worker_id: str, number: int, fence: int) -> bool:
        return super().cancel_grant(worker_id, number, self.fence_of(number))


class ReapsWithoutGrace(Mutant):
    """A killed rank still sits on the slot when the next one comes."""

    early = 0.0

    def reap(self) -> int:
        set_grace = "UPDATE @pool SET grace = :grace WHERE name = :pool"
        self.change(set_grace, grace=-self.early)
        try:
            return super().reap()
        finally:
            self.change(set_grace, grace=self.grace)


class ReapsBeforeTheEnd(ReapsWithoutGrace):
    """A lease is taken away while its holder still trusts in it."""

    early = 10.0


class CountsSlots(Mutant):
    """As many as are free are granted, whichever they are."""

    def acquire(
        self, worker_id: str, number: int, slot_ids: Sequence[int], others: Others = None
    ) -> Grant | None:
        line = next((row for row in self.trials() if row.number == number), None)
        if (
            line is None
            or line.owner is not None
            or (line.mode, line.worker) != ("run", worker_id)
        ):
            return None
        free = [row for row in self.slots() if row.holder is None]
        if line.slots != len(slot_ids) or len(free) < len(slot_ids):
            return None
        return self.take(worker_id, number, slot_ids)


class GrantsAgain(Mutant):
    """A repeated call gets a second grant for what the first one took."""

    def acquire(
        self, worker_id: str, number: int, slot_ids: Sequence[int], others: Others = None
    ) -> Grant | None:
        line = next((row for row in self.trials() if row.number == number), None)
        if line is not None and line.owner == worker_id:
            return self.take(worker_id, number, slot_ids)
        return super().acquire(worker_id, number, slot_ids, others)


class PlansWithoutTerm(Mutant):
    """A planner that was frozen overwrites its successor's plan."""

    def _guard_planner(self, tx: Transaction, worker_id: str, term: int) -> None:
        pass


class SavesWithoutFence(Mutant):
    """A zombie's checkpoint becomes the trial's newest."""

    def add_checkpoint(
        self, worker_id: str, grant: Grant, *new: Checkpoint, reports: Sequence[NewReport] = ()
    ) -> list[Location]:
        self._open = True
        try:
            return super().add_checkpoint(worker_id, grant, *new, reports=reports)
        finally:
            self._open = False

    def _guard(self, tx: Transaction, me: str, grant: Grant) -> None:
        if not getattr(self, "_open", False):
            super()._guard(tx, me, grant)


class LendsToAnybody(Mutant):
    """Whoever offers a free slot takes it, whatever the pool's leader wants."""

    def acquire(
        self, worker_id: str, number: int, slot_ids: Sequence[int], others: Others = None
    ) -> Grant | None:
        self.change(
            "UPDATE @slot SET lent_to = :study WHERE holder IS NULL AND id IN each(:ids)",
            ids=listed(slot_ids),
        )
        return super().acquire(worker_id, number, slot_ids, others)


class LendsWithoutTerm(Mutant):
    """A leader that was frozen divides the pool once more."""

    def _guard_leader(self, tx: Transaction, worker_id: str, term: int) -> None:
        pass


class GrantsTheHeld(Mutant):
    """A plan from before the request is carried out."""

    def acquire(
        self, worker_id: str, number: int, slot_ids: Sequence[int], others: Others = None
    ) -> Grant | None:
        self.change(
            "UPDATE @trial SET held = NULL WHERE study_id = :study AND number = :number",
            number=number,
        )
        return super().acquire(worker_id, number, slot_ids, others)


class GrantsTheDrained(Mutant):
    """Only the planner knows of it."""

    def acquire(
        self, worker_id: str, number: int, slot_ids: Sequence[int], others: Others = None
    ) -> Grant | None:
        drained = next((row.drained for row in self.workers() if row.id == worker_id), None)
        set_drained = "UPDATE @worker SET drained = :drained WHERE id = :me"
        self.change(set_drained, me=worker_id, drained=None)
        try:
            return super().acquire(worker_id, number, slot_ids, others)
        finally:
            self.change(set_drained, me=worker_id, drained=drained)


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


STORES: tuple[type[Mutant], ...] = (
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
SHARING: tuple[type[Mutant], ...] = (LendsToAnybody, LendsWithoutTerm)
#: What nobody finds out as long as nobody asks for anything.
ASKING: tuple[type[Mutant], ...] = (GrantsTheHeld, GrantsTheDrained)
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
