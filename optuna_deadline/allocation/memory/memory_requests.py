"""What people ask for, in memory."""

from __future__ import annotations

from collections.abc import Mapping

from optuna_deadline.allocation.memory.plans import MemoryPlans
from optuna_deadline.allocation.memory.state import changed
from optuna_deadline.allocation.records import Desired
from optuna_deadline.allocation.sql.plans import by_type
from optuna_deadline.allocation.sql.requests import a_little_before


class MemoryRequests(MemoryPlans):
    """Trials held and pinned, hosts drained."""

    def hold(self, number: int, held: bool) -> bool:
        """Keep a trial from slots, or let it go on."""
        with self._lock:
            line = self._living(number)
            if line is not None and (line.held is not None) != held:
                self._put(line, held=self.now() if held else None)
                self._event("hold", number=number, held=held)
            return line is not None

    def pin(self, number: int, slots: int | None) -> bool:
        """Pin the size of a trial's gang, or leave it to the policy."""
        with self._lock:
            line = self._living(number)
            if line is not None and line.pinned != slots:
                self._put(line, pinned=slots)
                self._event("pin", number=number, slots=slots)
            return line is not None

    def set_price(
        self,
        host_type: str,
        per_hour: float,
        slots: int,
        funds_end: float,
        seen: tuple[int | None, float | None],
        types: Mapping[str, int] | None = None,
    ) -> bool:
        """Tell what a slot costs from now on."""
        with self._lock:
            study = self._study
            if study is None or seen != (study.pool_slots, study.known_end):
                return False
            study.funds_end = a_little_before(study.deadline, study.known_end, funds_end)
            self._event("price", type=host_type, per_hour=per_hour, slots=slots)
            size = study.pool_slots or 0
            self._event("pool", slots=size, before=size, until=study.funds_end, **by_type(types))
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

    def _living(self, number: int) -> Desired | None:
        study = self._study
        line = None if study is None else study.trials.get(number)
        return line if line is not None and line.alive else None
