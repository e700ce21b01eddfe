"""The present state of all pools of a database as JSON values, for the live page."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.following import Following
from optuna_deadline.allocation.records import Event, PlannedTrial, Slot, Tenant
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.allocation.table.reads import pools
from optuna_deadline.allocation.tail import Tail
from optuna_deadline.history.records import SlotInterval, slot_intervals
from optuna_deadline.history.text import event_sentence
from optuna_deadline.planning.reading import BestReports, RegimeNames

_NO_STUDY = 0  # reads a pool without belonging to one of its studies
_BACK = 2000  # events that are read at first
_WINDOW, _LEAST = 300.0, 60.0  # seconds of each slot's past on the page
_TRIALS = 200
_EVENTS = 40
_FRESH = 1.0  # seconds for which an answer is reused
_ORDER = {"running": 0, "ready": 1, "paused": 2}


class PoolStates:
    """Answers all viewers of a database; reads new rows at most once a second.

    Args:
        database: The table's database.
        clock: A monotonic clock, in seconds.
        ended: Returns the studies that have ended, as JSON values.
    """

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float] = time.monotonic,
        ended: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        self._database = database
        self._ended = ended
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, _Pool] = {}
        self._said: dict[str, Any] = {}
        self._until = -math.inf

    def state(self) -> dict[str, Any]:
        """All pools, those with studies first, and the studies that have ended."""
        with self._lock:
            if self._clock() >= self._until:
                self._said = self._refresh()
                self._until = self._clock() + _FRESH
            return self._said

    def _refresh(self) -> dict[str, Any]:
        names = pools(self._database)
        for name in names:
            if name not in self._known:
                self._known[name] = _Pool(AllocationTable(self._database, name, _NO_STUDY))
        found = [self._known[name].refresh() for name in names]
        return {
            "pools": sorted(found, key=lambda pool: not pool["studies"]),
            "ended": self._ended(),
        }


class _Pool:
    """The rows of one pool that have been read."""

    def __init__(self, table: AllocationTable) -> None:
        self._table = table
        self._events: dict[int, Event] = {}
        self._new: Tail[Event] | None = None
        self._studies: dict[int, _Study] = {}
        self._names: dict[int, str] = {}
        self._places: dict[int, str] = {}

    def refresh(self) -> dict[str, Any]:
        table = self._table
        now, tenants, slots = table.now(), table.tenants(), table.slots()
        self._names.update((tenant.study_id, tenant.name) for tenant in tenants)
        events = self._read_events(now)
        held: dict[tuple[int | None, int | None], list[Slot]] = defaultdict(list)
        for slot in slots:
            if slot.holder is not None:
                held[slot.study_id, slot.number].append(slot)
        self._places = {slot.id: f"{slot.device} on {slot.host}" for slot in slots}
        window = min(_WINDOW, max([_LEAST, *(now - event.at for event in events[:1])]))
        past: dict[int, list[SlotInterval]] = defaultdict(list)
        for hold in slot_intervals(events):
            if hold.end is None or hold.end > now - window:
                past[hold.slot].append(hold)
        live = table.workers()
        drained = {worker.host for worker in live if worker.drained is not None}
        planned_rows = {tenant.study_id: self._read_study(tenant, now) for tenant in tenants}
        trials = [
            self._trial(now, tenant, planned, held[tenant.study_id, planned.number])
            for tenant in tenants
            for planned in planned_rows[tenant.study_id]
            if planned.alive
        ]
        trials.sort(key=lambda row: (_ORDER[row["state"]], row["study"], row["number"]))
        return {
            "name": table.pool,
            "window": window,
            "workers": len(live),
            "studies": [
                self._study(now, tenant, slots, planned_rows[tenant.study_id])
                for tenant in tenants
            ],
            "slots": [
                {**self._slot(now, slot, past[slot.id], window), "drained": slot.host in drained}
                for slot in slots
            ],
            "handovers": [row for row in trials if row["handover"]]
            + [
                self._lending(slot)
                for slot in slots
                if slot.study_id is not None and slot.lent_to not in (None, slot.study_id)
            ],
            "trials": trials[:_TRIALS],
            "more_trials": max(0, len(trials) - _TRIALS),
            "events": [
                {"id": event.id, "ago": now - event.at, "words": words, "kind": event.kind}
                for event in reversed(events)
                if (words := self._words(event))
            ][:_EVENTS],
        }

    def _read_events(self, now: float) -> list[Event]:
        table = self._table
        if self._new is None:
            self._new = Tail(table.pool_events, start=table.event_before(_BACK, of_pool=True))
        new = self._new.read(now)
        self._events.update((event.id, event) for event in new if event.kind != "checkpoint")
        found = [self._events[row_id] for row_id in sorted(self._events)]
        # Older events are dropped, except grants that are still held.
        open_ = {hold.slot: hold.start for hold in slot_intervals(found) if hold.end is None}
        kept = [
            event
            for place, event in enumerate(found)
            if event.at > now - 2 * _WINDOW
            or place >= len(found) - 2 * _EVENTS
            or (event.kind == "acquire" and open_.get(event.slot or 0) == event.at)
        ]
        self._events = {event.id: event for event in kept}
        return kept

    def _read_study(self, tenant: Tenant, now: float) -> list[PlannedTrial]:
        if tenant.study_id not in self._studies:
            table = AllocationTable(self._table.database, self._table.pool, tenant.study_id)
            self._studies[tenant.study_id] = _Study(table, tenant.direction)
        return self._studies[tenant.study_id].refresh(now)

    def _study(
        self, now: float, tenant: Tenant, slots: list[Slot], planned_rows: list[PlannedTrial]
    ) -> dict[str, Any]:
        study = self._studies[tenant.study_id]
        return {
            "id": tenant.study_id,
            "name": tenant.name,
            "left": tenant.deadline - now,
            "weight": tenant.weight,
            "lent": sum(slot.lent_to == tenant.study_id for slot in slots),
            "used": sum(slot.study_id == tenant.study_id for slot in slots),
            "could_use": None if tenant.claim is None else tenant.claim.most,
            "states": {
                state: sum(planned.state == state for planned in planned_rows if planned.alive)
                for state in _ORDER
            },
            "reports": study.reports,
            "best": study.best,
        }

    def _slot(
        self, now: float, slot: Slot, past: list[SlotInterval], window: float
    ) -> dict[str, Any]:
        return {
            "id": slot.id,
            "host": slot.host,
            "device": slot.device,
            "offered": bool(slot.offered_by),
            "lent_to": self._name(slot.lent_to),
            "study": self._name(slot.study_id),
            "number": slot.number,
            "lease": None if slot.lease is None else slot.lease - now,
            "fence": slot.fence,
            "past": [
                {
                    "from": min(window, now - hold.start),
                    "to": 0.0 if hold.end is None else now - hold.end,
                    "number": hold.number,
                    "study": self._name(hold.study_id),
                }
                for hold in past
            ],
        }

    def _trial(
        self, now: float, tenant: Tenant, planned: PlannedTrial, held: list[Slot]
    ) -> dict[str, Any]:
        wanted = planned.slots if planned.mode == "run" else 0
        study = self._studies[tenant.study_id]
        last = study.last.get(planned.number)
        moved = (
            planned.owner is not None and planned.mode == "run" and planned.worker != planned.owner
        )
        return {
            "study": tenant.name,
            "study_id": tenant.study_id,
            "number": planned.number,
            "state": planned.state,
            "granted": len(held),
            "desired": wanted,
            "mode": planned.mode,
            "where": sorted(self._places[slot.id] for slot in held),
            "reason": study.regimes.explain(planned.number, planned.reason),
            "held": planned.held is not None,
            "pinned": planned.pinned,
            "since": now - planned.since,
            "handover": len(held) != wanted or moved,
            "step": None if last is None else last[0],
            "value": None if last is None or not math.isfinite(last[1]) else last[1],
        }

    def _lending(self, slot: Slot) -> dict[str, Any]:
        return {
            "study": self._name(slot.study_id),
            "number": slot.number,
            "slot": self._places[slot.id],
            "heir": self._name(slot.lent_to),
        }

    def _name(self, study_id: int | None) -> str | None:
        if study_id is None:
            return None
        return self._names.get(study_id, f"study {study_id}")

    def _words(self, event: Event) -> str:
        study = self._name(event.study_id) or "?"
        return event_sentence(
            event, study, self._places.get(event.slot or 0, f"slot {event.slot}")
        )


class _Study:
    """The last report of each trial of a study, and the best report."""

    def __init__(self, table: AllocationTable, direction: str) -> None:
        self._following = Following(table)
        self._best = BestReports(direction)
        self.regimes = RegimeNames()
        self.last: dict[int, tuple[int, float]] = {}
        self.reports = 0

    def refresh(self, now: float) -> list[PlannedTrial]:
        rows = self._following.read(now).reports
        self._best.take(rows)
        self.regimes.take(rows)
        for row in rows:
            self.reports += 1
            if row.number not in self.last or row.step >= self.last[row.number][0]:
                self.last[row.number] = (row.step, row.value)
        return list(self._following.unreported.values())

    @property
    def best(self) -> dict[str, Any] | None:
        """Value and trial of the best finite report; None if there is none."""
        row = self._best.best()
        if row is None or not math.isfinite(row.value):
            return None
        return {"value": row.value, "number": row.number}
