"""The check of a study's first trial, in the rank that is about to train it."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from optuna_deadline.checking.moves import Check
from optuna_deadline.checking.rows import OUTCOME, CheckResult, CheckRow, summed_up
from optuna_deadline.checking.runs import Stopped, TrainingRuns
from optuna_deadline.errors import DeadlineError
from optuna_deadline.rank.objective import loaded
from optuna_deadline.segments import Segment

_log = logging.getLogger("optuna_deadline")
_HANG_TIMEOUT = 900.0  # seconds without a message


def check_first(trial: Any, segment: Segment) -> None:
    """Check the study's first trial before its first step; other trials are skipped.

    Its slots train a few steps undisturbed, paused and on two slots. The result is printed,
    whatever logging is configured, and stored with the trial. If a second slot changes the trial,
    it is limited to one.
    """
    source = loaded()
    first = segment.elastic and segment.rank == 0 and trial.number == 0 and segment.resume is None
    if not first or source is None or getattr(segment, "checked", False):
        return
    devices = _devices(segment.world_size)
    try:
        with TrainingRuns(
            source, trial, devices, hang_timeout=_HANG_TIMEOUT, stop=lambda: segment.newest().leave
        ) as runs:
            rows = list(Check(runs, slots=len(devices)).rows())
    except Stopped:
        return
    except DeadlineError as error:
        _log.warning("The first trial cannot be checked: %s", error)
        return
    outcome = {row.name: str(row) for row in rows}
    trial.set_user_attr(OUTCOME, outcome)
    print(f"Check of the first trial: {summed_up(outcome)}.", file=sys.stderr, flush=True)
    for row in rows:
        if row.bad:
            _log.warning("Check of the first trial, %s: %s. %s", row.name, row, row.advice)
    if (why := _against_growth(rows)) is not None:
        segment.limit_slots(1, why)


def _devices(slots: int) -> list[str]:
    """The trial's own devices if it has several, else CPUs: a GPU cannot be two slots."""
    gpus = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    if gpus:
        return [f"gpu:{one}" for one in gpus]
    return [f"cpu:{index}" for index in range(max(slots, 2))]


def _against_growth(rows: list[CheckRow]) -> str | None:
    """Why the trial stays on one slot, if it has to."""
    for row in rows:
        if "slots" in row.name and (row.bad or row.result is CheckResult.REFUSED):
            return f"the check of the first trial, {row.name}: {row}"
    return None
