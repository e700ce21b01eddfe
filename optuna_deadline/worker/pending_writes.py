"""What the ranks of a gang said and the database does not have yet.

However slow the database is, the worker's leases come first, and what a segment says is worth the
more the newer it is. So a gang is written in turns, and what has piled up until its turn goes
together: reports as one statement, or in one transaction with the checkpoints among them.

The order that correctness needs:

1. Reports are stored in the order in which they were made.
2. A report is stored before any checkpoint that was said after it, or with it. A trial that goes
   on from that checkpoint never makes those steps again.
3. Checkpoints are committed in their order, and all of them before the segment's release: the
   table takes none from a segment that is over.
4. What is asked, and that a process is parked, has its turn after all that was said before it.

Reports never overtake the checkpoints among them: a worker that dies between two writes would
leave steps that the table has seen and that are trained again. What fails is done again, whole,
so each write is one that may be repeated. Optuna has its copy of the reports last; the planner
completes that copy at the trial's end.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from optuna_deadline.allocation.records import NewReport
from optuna_deadline.checkpoints.files import Checkpoint

#: So many reports go together at most: a statement must stay short.
MAX_REPORTS = 1000


class PendingWrites:
    """Filled by the event loop's thread, written to the database by the table thread."""

    def __init__(self) -> None:
        self._queue: deque[NewReport | Checkpoint | Callable[[], None]] = deque()
        # What has been taken from there, by the thread that writes alone.
        self._reports: list[NewReport] = []
        self._checkpoints: list[Checkpoint] = []
        self._uncopied: list[NewReport] = []
        self._next_action: Callable[[], None] | None = None

    def __bool__(self) -> bool:
        return bool(self._queue or self._has_batch)

    def add(self, item: NewReport | Checkpoint | Callable[[], None]) -> None:
        """Add what was said last, or what is to be done after all that was said before it."""
        self._queue.append(item)

    def clear(self) -> None:
        """Forget everything: the trial is another worker's."""
        self._queue.clear()
        self._reports, self._checkpoints, self._uncopied, self._next_action = [], [], [], None

    def write(
        self,
        store: Callable[[Sequence[NewReport], Sequence[Checkpoint]], None],
        copy: Callable[[Sequence[NewReport]], None],
        until: float,
    ) -> bool:
        """Write all there is, or what comes together first where the time is up by then.

        Args:
            store: Stores reports and commits checkpoints, all or none.
            copy: Copies reports that are stored to Optuna.
            until: No further round is begun from then on, on the monotonic clock.

        Returns:
            Whether anything was written.
        """
        wrote = False
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
            if self._next_action is not None:
                self._next_action()
                self._next_action = None
            wrote = True
            if time.monotonic() >= until:
                break
        return wrote

    def _take_batch(self) -> bool:
        """Take what was said, up to what must wait for it."""
        while self._next_action is None and self._queue:
            said = self._queue.popleft()
            if isinstance(said, NewReport):
                self._reports.append(said)
            elif isinstance(said, Checkpoint):
                self._checkpoints.append(said)
            else:
                self._next_action = said
        return self._has_batch

    @property
    def _has_batch(self) -> bool:
        return bool(self._reports or self._checkpoints or self._uncopied or self._next_action)
