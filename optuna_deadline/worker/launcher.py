"""From a line of the plan to a running segment: its checkpoint, its slots, its ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from optuna.study import Study
from optuna.trial import Trial

from optuna_deadline.allocation.records import Desired, Home
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.checkpoints.restore import Resuming, Sweeping
from optuna_deadline.planning.optuna_storage import unless_deleted
from optuna_deadline.planning.sampling import Sampling
from optuna_deadline.worker.event_loop import Switchboard
from optuna_deadline.worker.fork import Terms, launch
from optuna_deadline.worker.gang_leader import Meetings
from optuna_deadline.worker.inbox import Hearing
from optuna_deadline.worker.lease_clock import Trust
from optuna_deadline.worker.parking import Parking
from optuna_deadline.worker.segment import Gang


class Starting:
    """Starts the segments that the plan wants on this worker.

    Args:
        study: The Optuna study.
        table: The allocation table.
        me: The worker.
        board: Has the zygote.
        terms: What all ranks of the worker have in common.
        resuming: Finds what a trial goes on from.
        sweeping: Deletes checkpoints that no row names any more.
        trust: How far the leases are believed.
        patience: Seconds of silence after which ranks are taken for hung.
        reaches: Whether what was written somewhere can be read here.
        parking: Has the processes that wait.
        meetings: Brings ranks on several hosts together.
        sampling: Learns of the sampler's errors.
    """

    def __init__(
        self,
        study: Study,
        table: AllocationStore,
        me: str,
        board: Switchboard,
        terms: Callable[[], Terms],
        resuming: Resuming,
        sweeping: Sweeping,
        trust: Trust,
        patience: float,
        reaches: Callable[[Home], bool],
        parking: Parking,
        meetings: Meetings,
        sampling: Sampling,
    ) -> None:
        self._sampling = sampling
        self._study = study
        self._table = table
        self._me = me
        self._board = board
        self._terms = terms
        self._resuming = resuming
        self._sweeping = sweeping
        self._trust = trust
        self._patience = patience
        self._reaches = reaches
        self._parking = parking
        self._meetings = meetings

    def start(self, line: Desired, gangs: dict[int, Gang], occupied: Collection[int] = ()) -> None:
        """Start a trial's segment where that can be done now, and add it to the others.

        Slots that are ``occupied`` by further ranks of this worker are not free.

        The gang is among the others before its first rank is forked: whoever hears of a rank must
        find it there.
        """
        ready = line.owner is None and line.mode == "run" and line.worker == self._me
        if not ready or line.number in gangs:
            return
        free = [slot for slot in self._free(gangs) if slot not in occupied]
        own = line.slots - sum(count for _, count in line.others)
        if len(free) < own:
            return
        # Everything that reads comes first: a failure after the grant would hold idle slots.
        parked = self._parking.slot_for(line, free)
        saved = self._table.checkpoints(line.number) if parked is None else []
        if parked is None and not self._can_resume(line, saved):
            return
        others = self._meetings.slots_of(line)
        if others is None:
            return
        with unless_deleted(self._study):
            self._study.get_trials(deepcopy=False)  # Optuna's cache knows what others opened
            trial = Trial(self._study, line.trial_id)
        trained = self._table.trained_before(line.number, line.fence + 1)
        sent = time.monotonic()
        slots = self._parking.order(free)[:own] if parked is None else [parked]
        grant = self._table.acquire(self._me, line.number, slots, others)
        if grant is None or time.monotonic() >= self._trust.until:
            return  # frozen since it was sent: somebody else may have the slots by now
        if grant.fence == line.fence + 1:
            self._sweeping.sweep_unnamed(line.number, line.fence)
        gang = Gang(grant, line.failures, trained, granted_at=sent, patience=self._patience)
        gang.listener = Hearing(
            self._table, self._me, gang, trial, self._sweeping.sweep, self._sampling
        )
        gangs[line.number] = gang
        if parked is not None:
            self._parking.take_out(line.number, gang)
            return
        resume = self._resuming.take(line.number)
        crew = self._meetings.convene(gang, resume, saved)
        launch(self._board.zygote, gang, crew, resume, self._terms(), self._trust.until)

    def _can_resume(self, line: Desired, saved: list[Checkpoint]) -> bool:
        """Whether what the trial goes on from is here, where no parked process of its goes on."""
        self._parking.end(line.number)
        if saved and not self._reaches(self._table.homes(number=line.number)[-1]):
            return False  # it was saved elsewhere since the plan was made, which is soon made anew
        self._sweeping.look(line.number, line.fence, saved)
        return self._resuming.ask(line.number, line.fence, saved)

    def _free(self, gangs: Mapping[int, Gang]) -> list[int]:
        busy = {slot for gang in gangs.values() for slot, _ in gang.grant.slots}
        return [slot for slot in self._table.free_slots(self._me) if slot not in busy]
