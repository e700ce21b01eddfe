"""Virtual time: a heap of things to do, each at its instant, ties in the order of their making."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Timer:
    """Something that will happen unless it is cancelled."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Let it not happen."""
        self.action = None


class Timeline:
    """A clock that jumps from one event to the next.

    Args:
        now: Where it begins.
    """

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self._made = 0
        self._heap: list[tuple[float, int, Timer]] = []

    def now(self) -> float:
        """Seconds since the beginning."""
        return self._now

    def at(self, instant: float, action: Callable[[], None]) -> Timer:
        """Let something happen at an instant; at once where that has passed."""
        timer = Timer(action)
        self._made += 1
        heapq.heappush(self._heap, (max(instant, self._now), self._made, timer))
        return timer

    def after(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Let something happen some seconds from now."""
        return self.at(self._now + seconds, action)

    @contextmanager
    def as_of(self, instant: float) -> Iterator[None]:
        """Do now what belongs to another instant, and what nobody could see before now."""
        now, self._now = self._now, instant
        try:
            yield
        finally:
            self._now = now

    def advance(self) -> bool:
        """Let the next thing happen; False where nothing is left to do."""
        while self._heap:
            instant, _, timer = heapq.heappop(self._heap)
            if timer.action is not None:
                self._now = instant
                timer.action()
                return True
        return False
