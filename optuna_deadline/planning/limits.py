"""The most slots on which a study's trials can train, learned from its table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optuna_deadline.allocation.records import PlannedTrial, SegmentRow
from optuna_deadline.errors import at_most

#: If no trial has ever used more slots, this many trials with a limit set it for all.
_MIN_EVIDENCE = 2


class SlotLimits:
    """Learns limits from each trial and each segment.

    Args:
        max_slots: The limit in the study's terms; None for no limit.
    """

    def __init__(self, max_slots: int | None = None) -> None:
        self._max_slots = max_slots
        self._limits: dict[int, int] = {}
        self._tried: dict[int, int] = {}  # by trial, the most slots that it was ever granted
        # By trial and fence, the slots on which a step was trained; never removed.
        self._proven: dict[tuple[int, int], int] = {}

    def take_trial(self, planned: PlannedTrial) -> None:
        """Record a trial's row, alive or not."""
        if planned.slot_limit is not None:
            self._limits[planned.number] = planned.slot_limit

    def take_segment(self, row: SegmentRow) -> None:
        """Record a segment; again once it has more steps."""
        self._tried[row.number] = max(row.slots, self._tried.get(row.number, 0))
        trained = row.stepped or row.outcome == "complete"  # reports may be missing
        if trained and row.outcome != "limit":
            self._proven[row[:2]] = row.slots
        else:
            self._proven.pop(row[:2], None)

    @property
    def learned(self) -> int | None:
        """The limit of trials that could not use more slots, if it holds for all others."""
        limits = [most for n, most in self._limits.items() if self._tried.get(n, 0) > most]
        if len(limits) < _MIN_EVIDENCE:
            return None
        most = max(limits)
        return most if max(self._proven.values(), default=0) <= most else None

    @property
    def max_slots(self) -> int | None:
        """The most slots of any trial of the study; None for no limit."""
        known = [most for most in (self._max_slots, self.learned) if most is not None]
        return min(known, default=None)

    def describe(self) -> str:
        """Explain the limit of all trials; empty if there is none."""
        if self.learned is not None and self.learned == self.max_slots:
            return (
                f"all trials train on {at_most(self.learned)}: {len(self._limits)} could not on"
                " more, and none has"
            )
        return (
            ""
            if self.max_slots is None
            else f"all trials train on {at_most(self.max_slots)}: max_slots"
        )


def limited(planned_rows: Sequence[PlannedTrial], limits: SlotLimits) -> Iterator[str]:
    """The study's limit, then each live trial's limit with its reason, newest first."""
    if words := limits.describe():
        yield words
    for planned in reversed(planned_rows):
        if planned.alive and planned.slot_limit is not None:
            limit = at_most(planned.slot_limit)
            yield f"trial {planned.number} trains on {limit}: {planned.limit_reason}"
