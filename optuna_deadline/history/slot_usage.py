"""Where the time of a study's slots goes. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from optuna_deadline.history.records import ORDERED, History
from optuna_deadline.history.series import available_slots, integral, slots_in_use, training_of
from optuna_deadline.history.text import format_percent


@dataclass(frozen=True)
class SlotUsage:
    """Slot-seconds of a study until now; together the time of all slots that it had."""

    loading: float = 0.0  #: before the first trial got a slot
    starting: float = 0.0  #: from a grant to the end of the segment's first step
    training: float = 0.0  #: from there on, with checkpoints
    validating: float = 0.0  #: as the integrations measure it
    waiting: float = 0.0  #: from a report to the plan that has seen it
    stopping: float = 0.0  #: from a directive to leave to the exit of the last process
    idle: float = 0.0  #: without a trial
    stepless: float = 0.0  #: the number of segments that were ended before their first step

    @property
    def total(self) -> float:
        """The time of all slots."""
        return sum(self._parts.values())

    @property
    def _parts(self) -> dict[str, float]:
        return {name: part for name, part in asdict(self).items() if name != "stepless"}

    def __str__(self) -> str:
        parts = sorted(self._parts.items(), key=lambda part: -part[1])
        words = [f"{format_percent(part, self.total)} {name}" for name, part in parts if part > 0]
        lost = f"; {self.stepless:g} segments without a step" if self.stepless else ""
        return f"{', '.join(words)} of {self.total:.0f} slot-seconds{lost}"


def slot_usage(history: History) -> SlotUsage:
    """Divide the time of the slots that the study had until now."""
    begin, end = history.started, history.end
    available, used = available_slots(history), slots_in_use(history.slot_intervals)
    total, held = integral(available, begin, end), integral(used, begin, end)
    first = min((row.granted for row in history.segments), default=end)
    loading = integral(available, begin, min(first, end))
    starting = stopping = validating = waiting = 0.0
    for row in history.segments:
        begun, leaving, until = training_of(row, end)
        starting += row.slots * (begun - row.granted)
        stopping += row.slots * (until - leaving)
        # A validation that goes on after the directive to leave is stopping.
        validated = min(row.validated or 0.0, leaving - begun)
        validating += row.slots * validated
        waiting += row.slots * min(row.waited or 0.0, leaving - begun - validated)
    training = max(0.0, held - starting - stopping - validating - waiting)
    idle = max(0.0, total - held - loading)
    ended = [row for row in history.segments if row.outcome in ORDERED]
    stepless = sum(not row.stepped for row in ended)
    return SlotUsage(loading, starting, training, validating, waiting, stopping, idle, stepless)
