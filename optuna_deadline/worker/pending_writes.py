"""Messages of a gang's ranks that are not in the database yet.

However slow the database is, the worker's leases come first, and newer messages matter more. So
gangs are written in turns. All that has piled up until a gang's turn is written together: reports
as one statement, or in one transaction with the checkpoints among them.

The order that correctness needs:

1. Reports are stored in their order.
2. A report is stored before any later checkpoint, or together with it. A trial that resumes from
   that checkpoint never repeats those steps.
3. Checkpoints are committed in their order, and all of them before the segment's release: the
   table accepts none from a segment that is over.
4. Requests are answered after all earlier messages, and the end of the segment comes last.

Reports never overtake the checkpoints among them: a worker that dies between two writes would
leave steps in the table that are then trained again. A failed write is repeated as a whole, so
each write is idempotent. Optuna's copy of the reports comes last; the planner completes that copy
at the trial's end.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from optuna_deadline.allocation.records import NewReport
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.worker.verdict import SegmentEnding, WentWarm

#: The most reports in one statement, which must stay short.
MAX_REPORTS = 1000


class PendingWrites:
    """Filled by the event loop's thread, written to the database by the table thread."""

    def __init__(self) -> None:
        self._queue: deque[NewReport | Checkpoint | Callable[[], None]] = deque()
        # Taken from the queue; used by the writing thread only.
        self._reports: list[NewReport] = []
        self._checkpoints: list[Checkpoint] = []
        self._uncopied: list[NewReport] = []
        self._next_action: Callable[[], None] | None = None
        self._end: SegmentEnding | WentWarm | None = None

    def __bool__(self) -> bool:
        return bool(self._queue or self._has_batch or self._end)

    @property
    def end(self) -> SegmentEnding | WentWarm | None:
        """How the segment ended, once all earlier messages are written."""
        return None if self._queue or self._has_batch else self._end

    def add_end(self, end: SegmentEnding | WentWarm) -> None:
        """Add the last message; a warm process may yet end."""
        self._end = end

    def add(self, item: NewReport | Checkpoint | Callable[[], None]) -> None:
        """Add the newest message, or a call to make after all earlier messages."""
        self._queue.append(item)

    def clear(self) -> None:
        """Forget everything: another worker has the trial."""
        self._queue.clear()
        self._reports, self._checkpoints, self._uncopied, self._next_action = [], [], [], None

    def write(
        self,
        store: Callable[[Sequence[NewReport], Sequence[Checkpoint]], None],
        copy: Callable[[Sequence[NewReport]], None],
        until: float,
    ) -> bool:
        """Write all messages, or one batch if the time is up.

        Args:
            store: Stores reports and commits checkpoints, all or none.
            copy: Copies stored reports to Optuna.
            until: No further batch begins after this, on the monotonic clock.

        Returns:
            Whether reports were written, which the next plan reads.
        """
        reported = False
        while self._take_batch():
            while self._reports or self._checkpoints:
                some = self._reports[:MAX_REPORTS]
                last = len(some) == len(self._reports)
                store(some, self._checkpoints if last else [])
                self._uncopied += some
                del self._reports[:MAX_REPORTS]
                if last:
                    self._checkpoints = []
            if self._uncopied:
                copy(self._uncopied)
                self._uncopied = []
                reported = True
            if self._next_action is not None:
                self._next_action()
                self._next_action = None
            if time.monotonic() >= until:
                break
        return reported

    def _take_batch(self) -> bool:
        """Take the messages up to the next one that must wait for them."""
        while self._next_action is None and self._queue:
            item = self._queue.popleft()
            if isinstance(item, NewReport):
                self._reports.append(item)
            elif isinstance(item, Checkpoint):
                self._checkpoints.append(item)
            else:
                self._next_action = item
        return self._has_batch

    @property
    def _has_batch(self) -> bool:
        return bool(self._reports or self._checkpoints or self._uncopied or self._next_action)
