"""Virtual time: a heap of events by instant, and timers that skip beats without effect.

Events of the same instant run in the order of their creation. Skipped beats cost no event, and the
next beat comes when it would have come without them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Timer:
    """An event that happens unless it is cancelled."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Cancel the event."""
        self.action = None


class Timeline:
    """A clock that jumps from one event to the next.

    Args:
        now: The start.
    """

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self._made = 0
        self._heap: list[tuple[float, int, Timer]] = []

    def now(self) -> float:
        """Seconds since the start."""
        return self._now

    def at(self, instant: float, action: Callable[[], None]) -> Timer:
        """Schedule a call at an instant; at once if that has passed."""
        timer = Timer(action)
        self._made += 1
        heapq.heappush(self._heap, (max(instant, self._now), self._made, timer))
        return timer

    def after(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Schedule a call some seconds from now."""
        return self.at(self._now + seconds, action)

    @contextmanager
    def as_of(self, instant: float) -> Iterator[None]:
        """Run a call as of another instant, which no reader can see before now."""
        now, self._now = self._now, instant
        try:
            yield
        finally:
            self._now = now

    def advance(self) -> bool:
        """Run the next event; returns False if there is none."""
        while self._heap:
            instant, _, timer = heapq.heappop(self._heap)
            if timer.action is not None:
                self._now = instant
                timer.action()
                return True
        return False


class SkippableTimer:
    """Calls an action at a fixed interval.

    Args:
        timeline: Virtual time.
        interval: Seconds between two beats.
        action: Called at each beat; it may call :meth:`skip_until`.
        on_skipped: Called with the instant of each skipped beat, before the next beat.
    """

    def __init__(
        self,
        timeline: Timeline,
        interval: float,
        action: Callable[[], None],
        on_skipped: Callable[[float], None] | None = None,
    ) -> None:
        self._timeline = timeline
        self._interval = interval
        self._action = action
        self._on_skipped = on_skipped
        self._next = math.inf  # the next beat without skips
        self._scheduled_at = math.inf  # the next beat that is not skipped
        self._timer: Timer | None = None

    def restart(self, instant: float) -> None:
        """Beat at an instant, and count from there."""
        self.catch_up()
        self._next = instant
        self._schedule(instant)

    def fire_by(self, instant: float) -> None:
        """Beat at an instant and count from there, unless the next beat is earlier."""
        if self._scheduled_at <= instant and self._scheduled_at <= self._next:
            return
        self.wake()
        if instant < self._scheduled_at:
            self.restart(instant)

    def skip_until(self, until: float = math.inf) -> None:
        """After a beat: skip the beats before an instant, unless woken."""
        self._next = self._timeline.now() + self._interval
        if until <= self._next:
            self._schedule(self._next)
        else:
            self._schedule(math.inf)
            if until < math.inf:
                self._timer = self._timeline.at(until, self.wake)

    def wake(self) -> None:
        """Stop skipping."""
        self.catch_up()
        if self._next < self._scheduled_at:
            self._schedule(self._next)

    def stop(self) -> None:
        """Stop the timer."""
        self.catch_up()
        self._next = math.inf
        self._schedule(math.inf)

    def catch_up(self) -> None:
        """Account for the beats that were skipped until now."""
        now = self._timeline.now()
        while self._next < now:
            if self._on_skipped is not None:
                self._on_skipped(self._next)
            self._next += self._interval

    def _schedule(self, instant: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._scheduled_at, self._timer = instant, None
        if instant < math.inf:
            self._timer = self._timeline.at(instant, self._fire)

    def _fire(self) -> None:
        self.catch_up()
        self._scheduled_at = math.inf
        self._action()
