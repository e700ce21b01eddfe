"""Gangs that cross workers, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from optuna_deadline.allocation.memory.memory_requests import MemoryRequests
from optuna_deadline.allocation.memory.state import changed
from optuna_deadline.allocation.records import Desired, Grant, Hand, Meeting, Part, Slot


class MemoryGangs(MemoryRequests):
    """Parts of gangs, where their ranks meet, and how their slots come back."""

    def meet(self, me: str, grant: Grant, where: Meeting) -> None:
        """Say where the ranks meet; said again, the first time counts."""
        with self._lock:
            study = self._guard(me, grant)
            for key, hand in study.hands.items():
                if key[:2] == (grant.number, grant.fence) and hand.meeting is None:
                    study.hands[key] = changed(hand, meeting=where)

    def give_back(self, me: str, number: int, fence: int) -> bool:
        """Free the slots of a part."""
        with self._lock:
            study = self._study
            hand = None if study is None else study.hands.pop((number, fence, me), None)
            if hand is None:
                return False
            for pair in hand.part.slots:
                if self._holds(me, pair):
                    row = self._free(pair[0])
                    self._event("release", number=number, slot=row.id, fence=row.fence, worker=me)
            return True

    def _alive(self, name: str, now: float) -> bool:
        return any(row.id == name for row in self._live(now))

    def _enlist(
        self, me: str, line: Desired, size: int, first: int, theirs: Mapping[str, list[Slot]]
    ) -> tuple[Part, ...]:
        study = self._study
        assert study is not None
        parts = []
        for name, rows in theirs.items():
            slots = tuple((row.id, row.fence + 1) for row in rows)
            part = Part(name, first, slots, tuple(row.device for row in rows))
            hand = Hand(line.number, line.trial_id, line.fence, me, size, part, stands=True)
            study.hands[line.number, line.fence, name] = hand
            parts.append(part)
            first += len(rows)
        return tuple(parts)

    def _take_back(self, number: int, fence: int) -> None:
        """Free what further workers were to give, where none can have forked a rank."""
        study = self._study
        assert study is not None
        for key, hand in list(study.hands.items()):
            if key[:2] == (number, fence) and hand.meeting is None:
                self.give_back(key[2], number, fence)

    def _forget_reaped(self, reaped: Iterable[Slot]) -> None:
        pairs = {(row.id, row.fence) for row in reaped}
        for study in self.state.studies.values() if pairs else ():
            for key, hand in list(study.hands.items()):
                if not pairs.isdisjoint(hand.part.slots):
                    del study.hands[key]
