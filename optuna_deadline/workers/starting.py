"""From a line of the plan to a running segment: its checkpoint, its slots, its ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from optuna.study import Study
from optuna.trial import Trial

from optuna_deadline.allocation.records import Desired, Home
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.workers.gang import Gang
from optuna_deadline.workers.hearing import Hearing
from optuna_deadline.workers.launch import launch
from optuna_deadline.workers.parking import Parking
from optuna_deadline.workers.resuming import Folders, Resuming, Sweeping
from optuna_deadline.workers.switchboard import Switchboard
from optuna_deadline.workers.trust import Trust


class Starting:
    """Starts the segments that the plan wants on this worker.

    Args:
        study: The Optuna study.
        table: The allocation table.
        me: The worker.
        board: Has the zygote.
        folders: Where ranks write.
        resuming: Finds what a trial goes on from.
        sweeping: Deletes checkpoints that no row names any more.
        trust: How far the leases are believed.
        patience: Seconds of silence after which ranks are taken for hung.
        reaches: Whether what was written somewhere can be read here.
        parking: Has the processes that wait.
    """

    def __init__(
        self,
        study: Study,
        table: AllocationStore,
        me: str,
        board: Switchboard,
        folders: Folders,
        resuming: Resuming,
        sweeping: Sweeping,
        trust: Trust,
        patience: float,
        reaches: Callable[[Home], bool],
        parking: Parking,
    ) -> None:
        self._study = study
        self._direction = study.direction.name.lower()
        self._table = table
        self._me = me
        self._board = board
        self._folders = folders
        self._resuming = resuming
        self._sweeping = sweeping
        self._trust = trust
        self._patience = patience
        self._reaches = reaches
        self._parking = parking

    def start(self, line: Desired, gangs: dict[int, Gang]) -> None:
        """Start a trial's segment where that can be done now, and add it to the others.

        The gang is among the others before its first rank is forked: whoever hears of a rank must
        find it there.
        """
        ready = line.owner is None and line.mode == "run" and line.worker == self._me
        if not ready or line.number in gangs:
            return
        free = self._free(gangs)
        if len(free) < line.slots:
            return
        # Everything that reads comes first: a failure after the grant would hold idle slots.
        parked = self._parking.slot_for(line, free)
        if parked is None and not self._can_resume(line):
            return
        self._study.get_trials(deepcopy=False)  # Optuna's cache must know what others opened
        trial = Trial(self._study, line.trial_id)
        trained = self._table.trained_before(line.number, line.fence + 1)
        sent = time.monotonic()
        slots = self._parking.order(free)[: line.slots] if parked is None else [parked]
        grant = self._table.acquire(self._me, line.number, slots)
        if grant is None or time.monotonic() >= self._trust.until:
            return  # frozen since it was sent: somebody else may have the slots by now
        if grant.fence == line.fence + 1:
            self._sweeping.sweep_unnamed(line.number, line.fence)
        gang = Gang(grant, line.failures, trained, granted_at=sent, patience=self._patience)
        gang.listener = Hearing(self._table, self._me, gang, trial, self._sweeping.sweep)
        gangs[line.number] = gang
        if parked is not None:
            self._parking.take_out(line.number, gang)
            return
        resume = self._resuming.take(line.number)
        launch(
            self._board.zygote, gang, resume, self._folders, self._direction,
            self._trust.until, self._table.grace,
        )  # fmt: skip

    def _can_resume(self, line: Desired) -> bool:
        """Whether what the trial goes on from is here, where no parked process of its goes on."""
        self._parking.end(line.number)
        saved = self._table.checkpoints(line.number)
        if saved and not self._reaches(self._table.homes(number=line.number)[-1]):
            return False  # it was saved elsewhere since the plan was made, which is soon made anew
        self._sweeping.look(line.number, line.fence, saved)
        return self._resuming.ask(line.number, line.fence, saved)

    def _free(self, gangs: Mapping[int, Gang]) -> list[int]:
        busy = {slot for gang in gangs.values() for slot, _ in gang.grant.slots}
        return [slot for slot in self._table.free_slots(self._me) if slot not in busy]
