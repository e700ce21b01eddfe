"""Threads for work that must not delay the renewal of leases.

:class:`PeriodicThread` repeats a pass of work, for planners and agents. :class:`BackgroundQueue`
runs one task after another, such as the reading of large files.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar


class PeriodicThread(threading.Thread):
    """Repeats a pass of work until it is stopped or a pass fails.

    Args:
        name: The name of the thread.
        work: One pass; returns the seconds until the next one, unless the thread is woken.
    """

    def __init__(self, name: str, work: Callable[[], float]) -> None:
        super().__init__(name=f"optuna-deadline-{name}", daemon=True)
        self._work = work
        self._woken = threading.Event()
        self._ending = False
        self._error: BaseException | None = None
        self._pass_began: float | None = None

    @property
    def busy_seconds(self) -> float:
        """For how long the current pass has worked; 0.0 between two passes."""
        began = self._pass_began
        return 0.0 if began is None else time.monotonic() - began

    def wake(self) -> None:
        """Start the next pass now, or right after the current one."""
        self._woken.set()

    def check(self) -> None:
        """Raise the exception of a failed pass."""
        if self._error is not None:
            raise self._error

    def stop(self, patience: float) -> bool:
        """Stop after the current pass; return whether it ended in time."""
        self._ending = True
        self._woken.set()
        if self.is_alive():
            self.join(patience)
        return not self.is_alive()

    def run(self) -> None:
        """Run the thread until :meth:`stop`, or until a pass fails."""
        while not self._ending:
            self._woken.clear()
            self._pass_began = time.monotonic()
            try:
                pause = self._work()
            except BaseException as error:
                self._error = error
                return
            self._pass_began = None
            self._woken.wait(pause)


T = TypeVar("T")


class BackgroundQueue:
    """Runs one task after another in a daemon thread.

    A ``ThreadPoolExecutor`` would delay the exit of Python until its tasks have ended.

    Args:
        name: The name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Add a task; it runs after those that were added before."""
        future: Future[T] = Future()
        self._queue.put((future, work))
        return future

    def close(self, seconds: float) -> None:
        """Accept no further task, and wait up to ``seconds`` for the remaining ones."""
        self._queue.put(None)
        self._thread.join(seconds)

    def _work(self) -> None:
        while (piece := self._queue.get()) is not None:
            future, work = piece
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
