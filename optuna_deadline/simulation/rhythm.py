"""What a worker does every so often, left out as long as it would see nothing new.

Beats that are left out cost no event, and those that follow come when they would have come anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from optuna_deadline.simulation.clock import Timeline, Timer


class Rhythm:
    """Beats of an action at a fixed interval.

    Args:
        timeline: Virtual time.
        interval: Seconds between two beats.
        action: Done at each beat; says by :meth:`rest` when the next one is needed.
        left_out: Told of the instant of each beat that was left out, before the next one.
    """

    def __init__(
        self,
        timeline: Timeline,
        interval: float,
        action: Callable[[], None],
        left_out: Callable[[float], None] | None = None,
    ) -> None:
        self._timeline = timeline
        self._interval = interval
        self._action = action
        self._left_out = left_out
        self._next = math.inf  # the next beat, were none left out
        self._comes = math.inf  # the next one that is not left out
        self._timer: Timer | None = None

    def restart(self, instant: float) -> None:
        """Beat at an instant, and count from there."""
        self.catch_up()
        self._next = instant
        self._beat_at(instant)

    def by(self, instant: float) -> None:
        """Beat at an instant and count from there, unless the next beat comes earlier."""
        if self._comes <= instant and self._comes <= self._next:
            return
        self.wake()
        if instant < self._comes:
            self.restart(instant)

    def rest(self, until: float = math.inf) -> None:
        """After a beat: leave out those before an instant, unless woken."""
        self._next = self._timeline.now() + self._interval
        if until <= self._next:
            self._beat_at(self._next)
        else:
            self._beat_at(math.inf)
            if until < math.inf:
                self._timer = self._timeline.at(until, self.wake)

    def wake(self) -> None:
        """Leave out no further beat."""
        self.catch_up()
        if self._next < self._comes:
            self._beat_at(self._next)

    def stop(self) -> None:
        """Never beat again."""
        self.catch_up()
        self._next = math.inf
        self._beat_at(math.inf)

    def catch_up(self) -> None:
        """Account for the beats that were left out until now."""
        now = self._timeline.now()
        while self._next < now:
            if self._left_out is not None:
                self._left_out(self._next)
            self._next += self._interval

    def _beat_at(self, instant: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._comes, self._timer = instant, None
        if instant < math.inf:
            self._timer = self._timeline.at(instant, self._beat)

    def _beat(self) -> None:
        self.catch_up()
        self._comes = math.inf
        self._action()
