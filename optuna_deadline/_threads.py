"""A thread that does one pass of work after another; planners and agents tick by it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Ticker(threading.Thread):
    """Works until it is ended or a pass fails.

    Args:
        name: What the thread is called.
        work: One pass; returns the seconds until the next unless somebody wakes the ticker.
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

    def end(self, patience: float) -> bool:
        """Let the pass in hand be the last; False where it does not end in time."""
        self._ending = True
        self._woken.set()
        if self.is_alive():
            self.join(patience)
        return not self.is_alive()

    def run(self) -> None:
        """Work until :meth:`end`, or until a pass fails."""
        while not self._ending:
            self._woken.clear()
            try:
                pause = self._work()
            except BaseException as error:
                self._error = error
                return
            self._woken.wait(pause)
