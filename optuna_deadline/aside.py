"""Work on files that may take minutes, done beside everything else a worker does.

Leases would not be renewed while a file of many gigabytes is read, or a store does not answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Aside:
    """One piece of work after another, in a thread that nobody waits for at the end.

    The threads of a ``ThreadPoolExecutor`` would be: Python does not exit before they have ended.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._pieces: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], T]) -> Future[T]:
        """Have it done after what was given before."""
        future: Future[T] = Future()
        self._pieces.put((future, work))
        return future

    def end(self, seconds: float) -> None:
        """Take no more; wait so long for what is left."""
        self._pieces.put(None)
        self._thread.join(seconds)

    def _work(self) -> None:
        while (piece := self._pieces.get()) is not None:
            future, work = piece
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
