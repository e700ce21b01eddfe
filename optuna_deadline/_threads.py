"""A thread that does one pass of work after another; planners and agents tick by it.

Work on files that may take minutes, done beside everything else a worker does.

Leases would not be renewed while a file of many gigabytes is read, or a store does not answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar


class PeriodicThread(threading.Thread):
    """Works until it is ended or a pass fails.

    Args:
        name: What the thread is called.
        work: One pass; returns the seconds until the next one, unless the ticker is woken.
    """

    def __init__(self, name: str, work: Callable[[], float]) -> None:
        super().__init__(name=f"optuna-deadline-{name}", daemon=True)
        self._work = work
        self._woken = threading.Event()
        self._ending = False
        self._error: BaseException | None = None

    def wake(self) -> None:
        """Begin the next pass now, or right after the one in hand."""
        self._woken.set()

    def check(self) -> None:
        """Raise what a pass raised."""
        if self._error is not None:
            raise self._error

    def stop(self, patience: float) -> bool:
        """Let the pass in hand be the last; False where it does not end in time."""
        self._ending = True
        self._woken.set()
        if self.is_alive():
            self.join(patience)
        return not self.is_alive()

    def run(self) -> None:
        """Work until :meth:`stop`, or until a pass fails."""
        while not self._ending:
            self._woken.clear()
            try:
                pause = self._work()
            except BaseException as error:
                self._error = error
                return
            self._woken.wait(pause)


T = TypeVar("T")


class BackgroundQueue:
    """One piece of work after another, in a daemon thread.

    The threads of a ``ThreadPoolExecutor`` would be: Python does not exit before they have ended.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have it done after what was given before."""
        future: Future[T] = Future()
        self._queue.put((future, work))
        return future

    def close(self, seconds: float) -> None:
        """Take no more; wait so long for what is left."""
        self._queue.put(None)
        self._thread.join(seconds)

    def _work(self) -> None:
        while (piece := self._queue.get()) is not None:
            future, work = piece
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
