"""Whether a trial that starts now can still report often enough to be compared."""

from __future__ import annotations

from itertools import islice
from statistics import median

from optuna_deadline.policies.api import Snapshot

_NEWEST = 32  # trials whose paces count
_REPORTS = 2  # one alone says nothing about a trial's direction


def comes_too_late(snapshot: Snapshot) -> bool:
    """Whether a new trial could not report twice before the deadline.

    By the start-up of the study and the median time between reports of the newest trials that have
    reported; False before the first report.
    """
    reported = (trial for trial in reversed(snapshot.trials) if trial.reports)
    paces = [trial.trained / len(trial.reports) for trial in islice(reported, _NEWEST)]
    if not paces:
        return False
    return snapshot.time_left < snapshot.overhead.startup + _REPORTS * median(paces)
