"""Which slots fail: a GPU that is lost fails every trial that starts on it, and only there.

A slot is at fault if trials fail on it at their start while others train elsewhere. Then it is
out of use for a while, and the trial goes back to its checkpoint. If every slot fails, the
objective is at fault; if a trial fails on a second slot, the trial is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from optuna_deadline.allocation.records import Grant, SegmentRow
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.values.deadlines import format_duration
from optuna_deadline.worker.verdict import (
    DEVICE_ERRORS,
    START_ERRORS,
    SegmentEnding,
    SegmentOutcome,
)

_logger = logging.getLogger("optuna_deadline")

#: Seconds until a slot is tried again: at first, doubled each time, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 1800.0
#: The same while nothing shows yet whether the slot or the objective is at fault.
_FIRST_MOMENTS = 5.0
#: Seconds for which a step elsewhere shows that the objective works.
_RECENT = 60.0
#: The end reason of segments for which their slot is at fault.
AT_FAULT = "slot"


@dataclass
class _SlotRecord:
    """What is known of one slot."""

    device: str
    failed: set[int] = field(default_factory=set)  # trials, at their start, since the last step
    pause: float = FIRST_PAUSE
    back_at: float | None = None  # when it is tried again
    why: str = ""
    withdrawn: bool = False  # as the table has it


class SlotHealth:
    """Judges the slots of one worker; takes those that fail out of use, and tries them again.

    Args:
        table: The allocation table.
        worker_id: The worker.
        size: The number of its slots.
    """

    def __init__(self, table: AllocationTable, worker_id: str, size: int) -> None:
        self._table = table
        self._worker_id = worker_id
        self._size = size
        self._slots: dict[int, _SlotRecord] = {}
        self._worked: dict[int, tuple[int, int]] = {}  # by slot, the last segment that trained
        self._blamed: dict[int, int] = {}  # by trial, the slot that was blamed for its failure

    @property
    def withdrawn(self) -> int:
        """The slots that this worker has and does not offer."""
        return sum(record.withdrawn for record in self._slots.values())

    def judge(self, ending: SegmentEnding, verdict: SegmentOutcome) -> SegmentOutcome:
        """The outcome of a segment that has ended: another one if its slot is at fault.

        Args:
            ending: How it ended.
            verdict: Its outcome otherwise.
        """
        grant, line = ending.grant, ending.error_line
        sudden = lost = any(sign in line for sign in DEVICE_ERRORS)
        if ending.stepped and not sudden:
            for slot, _ in grant.slots:
                self._slots.pop(slot, None)  # it works
                self._worked[slot] = grant.number, grant.fence
            self._blamed.pop(grant.number, None)
            return verdict
        if ending.answered_error and not sudden:
            return verdict  # the sampler or a wrong call is at fault
        failed = bool(line) or verdict.state == "failed" or verdict.end_reason == "died"
        place = ending.failed_place
        sudden = sudden or any(sign in line for sign in START_ERRORS)
        if not failed or place is None or ending.lost or (grant.size > 1 and not sudden):
            return verdict
        slot, device = grant.slots[place][0], grant.devices[place]
        record = self._slots.setdefault(slot, _SlotRecord(device))
        known, before = self._table.segments(), bool(record.failed)
        record.failed.add(grant.number)
        mine = [row for row in known if row.number == grant.number and row.fence < grant.fence]
        what = line or verdict.log_message.partition(";")[0]
        known_bad = sudden and self._is_out_for_others(slot)
        if not known_bad and self._fails_elsewhere(grant.number, slot, mine):
            record.failed.discard(grant.number)
            return verdict
        if not known_bad and not self._others_train(known, grant, slot):
            if lost:  # nothing trains yet, so the trial may resume on another slot first
                record.back_at, record.why = time.monotonic() + _FIRST_MOMENTS, what
            return verdict
        if not (sudden or before or any(row.stepped for row in mine)):
            return verdict
        self._blamed[grant.number] = slot
        beside = "as trials of a former worker" if known_bad else "while others train elsewhere"
        words = f"it fails on {device} ({what}), {beside}"
        if sudden or before:
            record.back_at, record.why = time.monotonic() + record.pause, what
            words = f"{words}: {device} is out of use for {format_duration(record.pause)}"
            record.pause = min(2 * record.pause, LONGEST_PAUSE)
        return SegmentOutcome(
            "paused", AT_FAULT, failures=ending.failures, log_message=f"{words}, and it resumes"
        )

    def _fails_elsewhere(self, number: int, slot: int, mine: Sequence[SegmentRow]) -> bool:
        """Whether another slot was blamed for the trial before; that one is tried again now."""
        blamed = self._blamed.get(number)
        if blamed == slot or not any(row.outcome == AT_FAULT for row in mine):
            return False
        self._blamed.pop(number, None)
        if blamed is not None and (record := self._slots.get(blamed)) is not None:
            record.failed.discard(number)
            record.back_at, record.pause = time.monotonic(), FIRST_PAUSE
        return True

    def _is_out_for_others(self, slot: int) -> bool:
        """Whether another worker, which had the same slot, took it out of use a moment ago.

        What the database's clock was set by since then counts as no time.
        """
        now, known = self._table.now(), {self._worker_id}
        for event in reversed(self._table.pool_events(kinds=("device", "clock"))):
            if event.kind == "clock" and event.study_id == self._table.study_id:
                now -= cast(float, event.detail["step"])
            elif event.slot == slot and event.worker not in known:
                known.add(event.worker or "")
                if not event.detail["in_use"] and now - event.at < _RECENT:
                    return True
        return False

    def _others_train(self, rows: Sequence[SegmentRow], grant: Grant, slot: int) -> bool:
        """Whether other trials train elsewhere, or did a moment ago on slots that do not fail."""
        ended = {row[:2]: (row.granted, row.ended) for row in rows}
        began, _ = ended.get((grant.number, grant.fence), (None, None))
        if began is None:
            return False
        others = [row for row in rows if row.stepped and row.number != grant.number]
        if any(row.ended is None for row in others):
            return True
        # What trained on this slot ended before, with the last of it.
        _, here = ended.get(self._worked.get(slot, (-1, -1)), (None, None))
        since = began - _RECENT if here is None else max(began - _RECENT, here)
        all_fail = sum(bool(record.failed) for record in self._slots.values()) >= self._size
        return not all_fail and any(row.ended > since for row in others if row.ended is not None)

    def reconcile(self) -> None:
        """Write to the table which slots are out of use; repeated after a database error."""
        now = time.monotonic()
        for slot, record in self._slots.items():
            out = record.back_at is not None and now < record.back_at
            if out == record.withdrawn:
                continue
            self._table.set_in_use(self._worker_id, slot, not out, record.why)
            record.withdrawn = out
            if not out:
                record.back_at = None
                _logger.warning("%s is tried again.", record.device)

    def note_registration(self) -> None:
        """The worker has offered all of its slots again."""
        for record in self._slots.values():
            record.withdrawn = False
