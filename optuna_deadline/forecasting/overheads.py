"""What a change of slots costs: all seconds without training, learned from the segments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Seconds assumed until something was measured (a warm fork, a restore, the first batch).
PRIOR_STARTUP = 1.0
PRIOR_STOP = 0.5

#: Round trips from the end of training to the end of the study, as counted with four trials: those
#: of the last looks and plans, and those of each trial. Below so many seconds they do not matter.
_TRIPS, _TRIPS_OF_EACH, _NEAR = 200, 60, 0.003

#: So many round trips were measured before they are believed.
FEWEST_TRIPS = 3

#: The newest measurements say enough.
KEPT_COSTS = 50


@dataclass(frozen=True)
class Overhead:
    """Seconds lost by starting and by leaving; a resize or a resume pays both."""

    startup: float = PRIOR_STARTUP
    stop: float = PRIOR_STOP

    @property
    def total(self) -> float:
        """Seconds lost by one resize."""
        return self.startup + self.stop


def closing_seconds(stop: float) -> float:
    """How long before the deadline ranks are told to stop, so that all ends are told by then.

    Args:
        stop: Seconds that the slowest rank took to leave so far; beyond 10 it is killed instead.
    """
    return 1.0 + 1.5 * min(stop, 10.0)


def far_seconds(trips: Sequence[float], slots: int, total: float) -> float:
    """How much earlier than :func:`closing_seconds` says, where the database is far away.

    Trials are written, told to Optuna and ended one after the other, with many round trips each.

    Args:
        trips: Seconds of the newest round trips; the shortest counts, for a stall soon passes.
        slots: How many trials may train until then.
        total: Seconds from the beginning to the deadline: a tenth at most is spent on this.
    """
    if len(trips) < FEWEST_TRIPS:
        return 0.0
    return min(total / 10, max(0.0, min(trips) - _NEAR) * (_TRIPS + slots * _TRIPS_OF_EACH))


def leaving_seconds(stop: float, silence: float = 0.0) -> float:
    """How long before its own end a worker leaves, so that its trials are saved by then.

    Unlike at a deadline nothing is killed to be in time, so what is slow gets the time it needs.

    Args:
        stop: Seconds that the slowest trial took to save and leave so far.
        silence: The longest that any was not heard of: so long may it be until it hears.
    """
    return 5.0 + 1.5 * max(stop, silence)


def learn_overhead(startups: Iterable[float], stops: Iterable[float]) -> Overhead:
    """The 90th percentile of what was measured, as HyperSched takes of its start-ups.

    HyperSched counts start-up alone; that leaving costs too is our addition.
    """
    return Overhead(
        startup=_high(list(startups), PRIOR_STARTUP), stop=_high(list(stops), PRIOR_STOP)
    )


def _high(seconds: list[float], prior: float) -> float:
    if not seconds:
        return prior
    ordered = sorted(seconds[-KEPT_COSTS:])
    return ordered[min(len(ordered) - 1, math.ceil(0.9 * len(ordered)) - 1)]
