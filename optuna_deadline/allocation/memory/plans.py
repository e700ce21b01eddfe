"""The transitions of leader, planners and users in memory, and their checks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from optuna_deadline.allocation.memory.reads import MemoryReads
from optuna_deadline.allocation.memory.state import MemoryPool, MemoryStudy, MemoryTenant, changed
from optuna_deadline.allocation.records import Assignment, Grant, PlannedTrial, Slot, StudyClaim
from optuna_deadline.allocation.rules import (
    duration_detail,
    earlier_end,
    election_outcome,
    placement_detail,
    types_detail,
)
from optuna_deadline.errors import LeaseLost


class MemoryPlans(MemoryReads):
    """Elections, plans, ends of trials."""

    def elect_planner(self, worker_id: str) -> int | None:
        """Become or stay the study's planner; returns the term."""
        with self._lock:
            now, place = self.now(), self._tenant
            if place is None:
                return None
            won = election_outcome(
                place.planner, place.term, place.expires, worker_id, now, self.ttl
            )
            if won is None or (
                won != place.term and (self._has_left(worker_id) or self._moved_pool(worker_id))
            ):
                return None
            if won != place.term:
                self._event("elect", worker=worker_id, term=won)
            place.planner, place.term, place.expires = worker_id, won, now + self.ttl
            return won

    def _has_left(self, worker_id: str) -> bool:
        row = self.state.workers.get(worker_id)
        return row is not None and row.state == "left"

    def _moved_pool(self, worker_id: str) -> bool:
        """Whether the study moved to another pool while a worker was silent."""
        names = list(self.state.workers)  # in the order of their registration
        later = set(names[names.index(worker_id) + 1 :]) if worker_id in names else set()
        live = [row for row in self._live(self.now()) if row.id in later]
        return any(row.study_id == self.study_id and row.pool != self.pool for row in live)

    def _guard_planner(self, worker_id: str, term: int) -> MemoryTenant:
        place = self._tenant
        if place is None or (place.planner, place.term) != (worker_id, term):
            raise LeaseLost(f"Term {term} of study {self.study_id} is over.")
        return place

    def elect_leader(self, worker_id: str) -> int | None:
        """Become or stay the pool's leader; returns the term."""
        with self._lock:
            now, pool = self.now(), self._pool
            if pool is None:
                return None
            won = election_outcome(pool.leader, pool.term, pool.expires, worker_id, now, self.ttl)
            if won is None or (won != pool.term and self._has_left(worker_id)):
                return None
            if won != pool.term:
                self._event("lead", worker=worker_id, term=won)
            pool.leader, pool.term, pool.expires = worker_id, won, now + self.ttl
            return won

    def _guard_leader(self, worker_id: str, term: int) -> MemoryPool:
        pool = self._pool
        if pool is None or (pool.leader, pool.term) != (worker_id, term):
            raise LeaseLost(f"Term {term} of pool {self.pool!r} is over.")
        return pool

    def lend(
        self,
        worker_id: str,
        term: int,
        lent: Mapping[int, int],
        shares: Mapping[int, int],
        fair: Mapping[int, float],
    ) -> None:
        """Lend slots to studies and update the accounts."""
        with self._lock:
            self._guard_leader(worker_id, term)
            now, slots = self.now(), self.state.slots
            for (pool, study_id), place in self.state.tenants.items():
                study = self.state.studies.get(study_id)
                if pool == self.pool and study is not None and study.settled is None:
                    place.served += (now - place.counted) * shares.get(study_id, 0)
                    place.entitled += (now - place.counted) * fair.get(study_id, 0.0)
                    place.counted = now
            for slot_id in sorted(lent):
                slots[slot_id] = changed(slots[slot_id], lent_to=lent[slot_id])
                self._event(
                    "lend", slot=slot_id, term=term, worker=worker_id, study_id=lent[slot_id]
                )

    def set_claim(self, worker_id: str, term: int, claim: StudyClaim) -> None:
        """Set the study's claim."""
        with self._lock:
            self._guard_planner(worker_id, term).claim = claim

    def open_trial(self, worker_id: str, term: int, number: int, trial_id: int) -> None:
        """Add a new Optuna trial to the table."""
        with self._lock:
            self._guard_planner(worker_id, term)
            study = self._study
            if study is None or number in study.trials:
                return
            study.put(
                PlannedTrial(
                    number=number,
                    trial_id=trial_id,
                    state="ready",
                    fence=0,
                    owner=None,
                    mode="pause",
                    worker=None,
                    slots=0,
                    reason="new",
                    since=self.now(),
                    horizon=None,
                    value=None,
                    end_reported=False,
                    failures=0,
                )
            )
            self._event("open", number=number, term=term)

    def write_plan(
        self,
        worker_id: str,
        term: int,
        changes: Sequence[Assignment],
        seconds: float | None = None,
    ) -> int:
        """Write the changes of a plan; returns the epoch."""
        with self._lock:
            self._guard_planner(worker_id, term)
            pool, study, now = self._pool, self._study, self.now()
            assert pool is not None
            for planned in sorted(changes, key=lambda planned: planned.number):
                known = None if study is None else study.trials.get(planned.number)
                if known is not None and known.alive:
                    self._put(
                        known,
                        mode=planned.mode,
                        worker=planned.worker,
                        slots=planned.slots,
                        others=planned.others,
                        reason=planned.reason,
                        since=now,
                    )
                self._event(
                    "plan",
                    number=planned.number,
                    term=term,
                    worker=planned.worker,
                    mode=planned.mode,
                    slots=planned.slots,
                    reason=planned.reason,
                    **placement_detail(planned.others),
                    **duration_detail(seconds),
                )
                seconds = None
            pool.epoch += 1
            return pool.epoch

    def conclude(
        self,
        worker_id: str,
        term: int,
        number: int,
        state: str,
        reason: str,
        value: float | None = None,
        *,
        unreported: bool = False,
    ) -> bool:
        """End a trial without a worker."""
        with self._lock:
            self._guard_planner(worker_id, term)
            study = self._study
            planned = None if study is None else study.trials.get(number)
            if planned is None or planned.owner is not None:
                return False
            if not planned.alive and not (
                unreported and not planned.end_reported and planned.state != "complete"
            ):
                return False
            self._put(planned, state=state, value=value, mode="stop", slots=0, reason=reason)
            self._event(state, number=number, term=term, worker=worker_id, reason=reason)
            return True

    def retire(self, worker_id: str, term: int, reasons: Mapping[int, str]) -> int:
        """Retire trials without a worker."""
        with self._lock:
            self._guard_planner(worker_id, term)
            ended = [
                self.conclude(worker_id, term, number, "retired", reasons[number])
                for number in sorted(reasons)
            ]
            return sum(ended)

    def mark_ends_reported(self, *numbers: int) -> None:
        """Record that Optuna knows the ends of these trials."""
        with self._lock:
            study = self._study
            for number in numbers if study is not None else ():
                if study is not None and number in study.trials:
                    self._put(study.trials[number], end_reported=True)

    def set_gate(self, worker_id: str, term: int, is_open: bool) -> None:
        """Open or close the gate."""
        with self._lock:
            self._guard_planner(worker_id, term)
            study = self._study
            if study is not None and (study.gate_closed is None) != is_open:
                study.gate_closed = None if is_open else self.now()
                self._event("gate", term=term, worker=worker_id, open=is_open)

    def resize_pool(
        self,
        worker_id: str,
        term: int,
        slots: int,
        funds_end: float,
        types: Mapping[str, int] | None = None,
        seen: tuple[int | None, float | None] | None = None,
    ) -> bool:
        """Set the number of slots that the study pays for, and the end of its money."""
        with self._lock:
            self._guard_planner(worker_id, term)
            study = self._study
            if study is None:
                return False
            stands = study.pool_slots, study.known_end
            if types is None and stands == (slots, funds_end):
                return True
            if (seen or stands) != stands:
                return False
            before = study.pool_slots or 0
            study.pool_slots, study.funds_end = slots, funds_end
            self._event(
                "pool", term=term, worker=worker_id, slots=slots, before=before, until=funds_end,
                **types_detail(types),
            )  # fmt: skip
            return True

    def settle(self, worker_id: str, term: int, seen: float | None = None) -> bool:
        """Close the study."""
        with self._lock:
            self._guard_planner(worker_id, term)
            study = self._study
            if study is None or seen not in (None, study.deadline):
                return False
            if study.settled is None:
                study.settled = self.now()
                self._event("settle", term=term, worker=worker_id)
            return True

    def _stop_idle_payments(self, study_ids: Iterable[int]) -> None:
        """Stop the payments of those of the studies that pay for slots and have no live worker."""
        now = self.now()
        for study_id in sorted(study_ids):
            study = self.state.studies.get(study_id)
            if study is None or study.settled is not None or study.known_end is None:
                continue
            if any(row.study_id == study_id for row in self._live(now)):
                continue
            rows = self.state.workers.values()
            leases = [row.lease for row in rows if row.study_id == study_id]
            study.pool_slots, study.funds_end = 0, math.inf
            since = min(now, max(leases, default=now))
            self._event("rest", study_id=study_id, since=since)

    # Helpers of the transitions.

    def _owns(self, worker_id: str, number: int, fence: int) -> bool:
        study = self._study
        planned = None if study is None else study.trials.get(number)
        return planned is not None and planned.owner == worker_id and planned.fence == fence

    def _holds(self, worker_id: str, pair: tuple[int, int]) -> bool:
        row = self.state.slots.get(pair[0])
        return row is not None and row.holder == worker_id and row.fence == pair[1]

    def _guard(self, worker_id: str, grant: Grant) -> MemoryStudy:
        study = self.state.studies.get(self.study_id)
        planned = None if study is None else study.trials.get(grant.number)
        if (
            study is None
            or planned is None
            or planned.owner != worker_id
            or planned.fence != grant.fence
        ):
            raise LeaseLost(f"Trial {grant.number} no longer belongs to segment {grant.fence}.")
        return study

    def _free(self, slot_id: int) -> Slot:
        row = self.state.slots[slot_id]
        freed = changed(
            row, holder=None, lease=None, study_id=None, number=None, fence=row.fence + 1
        )
        self.state.slots[slot_id] = freed
        return freed

    def _free_orphans(self) -> None:
        """Pause the trials of the pool's studies whose owner holds no slot for them."""
        workers = self.state.workers.values()
        of_pool = {row.study_id for row in workers if row.pool == self.pool}
        held = {
            (row.study_id, row.number, row.holder)
            for row in self.state.slots.values()
            if row.holder is not None
        }
        for study_id in of_pool & set(self.state.studies):
            planned_rows = self.state.studies[study_id].unreported.values()
            owned = [
                planned for planned in planned_rows if planned.alive and planned.owner is not None
            ]
            orphans = [
                planned
                for planned in owned
                if (study_id, planned.number, planned.owner) not in held
            ]
            self._release_orphans_of(study_id, orphans)

    def _release_orphans_of(self, study_id: int, orphans: Iterable[PlannedTrial]) -> None:
        study = self.state.studies[study_id]
        for planned in orphans:
            owner = self.state.workers.get(planned.owner or "")
            study.put(changed(planned, owner=None, state="paused"))
            self._end_segment(study, planned.number, planned.fence, "lost", None)
            self._event(
                "lost", number=planned.number, fence=planned.fence, worker=planned.owner,
                study_id=study_id, pool=None if owner is None else owner.pool,
            )  # fmt: skip

    def _end_segment(
        self, study: MemoryStudy, number: int, fence: int, outcome: str, stop: float | None
    ) -> None:
        row = study.running.pop((number, fence), None)
        if row is not None:
            study.end(row._replace(ended=self.now(), outcome=outcome, stop=stop))

    def _event(
        self,
        kind: str,
        *,
        number: int | None = None,
        slot: int | None = None,
        fence: int | None = None,
        term: int | None = None,
        worker: str | None = None,
        study_id: int | None = None,
        pool: str | None = None,
        **detail: object,
    ) -> None:
        of, items = self.study_id if study_id is None else study_id, tuple(detail.items())
        said = (pool or self.pool, of, self.now(), kind, number, slot, fence, term, worker, items)
        self.state.events.append(said)


class MemoryRequests(MemoryPlans):
    """Trials held and pinned, hosts drained."""

    def hold(self, number: int, held: bool) -> bool:
        """Hold a trial without slots, or release the hold."""
        with self._lock:
            planned = self._living(number)
            if planned is not None and (planned.held is not None) != held:
                self._put(planned, held=self.now() if held else None)
                self._event("hold", number=number, held=held)
            return planned is not None

    def pin(self, number: int, slots: int | None) -> bool:
        """Pin the size of a trial's gang, or remove the pin."""
        with self._lock:
            planned = self._living(number)
            if planned is not None and planned.pinned != slots:
                self._put(planned, pinned=slots)
                self._event("pin", number=number, slots=slots)
            return planned is not None

    def set_price(
        self,
        host_type: str,
        per_hour: float,
        slots: int,
        funds_end: float,
        seen: tuple[int | None, float | None],
        types: Mapping[str, int] | None = None,
    ) -> bool:
        """Set the price of a slot from now on."""
        with self._lock:
            study = self._study
            if study is None or seen != (study.pool_slots, study.known_end):
                return False
            study.funds_end = earlier_end(study.deadline, study.known_end, funds_end)
            self._event("price", type=host_type, per_hour=per_hour, slots=slots)
            size = study.pool_slots or 0
            self._event(
                "pool", slots=size, before=size, until=study.funds_end, **types_detail(types)
            )
            return True

    def drain(self, host: str, drained: bool) -> int:
        """Drain the pool's live workers on a host, or undo it."""
        with self._lock:
            now = self.now()
            there = [row for row in self.workers() if row.host == host]
            for row in sorted(there, key=lambda row: row.id):
                if (row.drained is not None) != drained:
                    self.state.workers[row.id] = changed(row, drained=now if drained else None)
                    self._event(
                        "drain",
                        worker=row.id,
                        study_id=row.study_id,
                        host=host,
                        drained=drained,
                    )
            return len(there)

    def _living(self, number: int) -> PlannedTrial | None:
        study = self._study
        planned = None if study is None else study.trials.get(number)
        return planned if planned is not None and planned.alive else None
