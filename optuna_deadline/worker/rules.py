"""What a live worker and a simulated one decide alike: pure functions of what they know."""

from __future__ import annotations

from collections.abc import Iterable

from optuna_deadline.allocation.records import OtherWorkers, PlannedTrial
from optuna_deadline.directives import KEEP, Directive, Kind

#: A trial fails once its ranks died this often without a new checkpoint; before that it resumes.
MAX_DEATHS = 3
#: Seconds that a first stop is assumed to take.
FIRST_STOP = 0.3
#: Seconds before the deadline at which ranks are killed.
LAST_MOMENT = 0.4


def is_to_start(row: PlannedTrial, worker_id: str, running: Iterable[int]) -> bool:
    """Whether the worker is to start the trial of a plan's line."""
    ready = row.owner is None and row.mode == "run" and row.worker == worker_id
    return ready and row.number not in running


def own_slots(row: PlannedTrial) -> int:
    """The slots of a plan's line that its own worker gives."""
    return row.slots - sum(count for _, count in row.others)


def directive_for(
    row: PlannedTrial, worker_id: str, size: int, others: OtherWorkers = ()
) -> Directive:
    """The directive of a plan's line for a segment of ``size`` slots."""
    if row.mode == "pause":
        return Directive(Kind.PAUSE, row.reason)
    if row.mode == "stop":
        return Directive(Kind.STOP, row.reason)
    if (row.worker, row.slots, sorted(row.others)) != (worker_id, size, sorted(others)):
        return Directive(Kind.RESIZE, row.reason)
    return KEEP


def in_force(
    present: Directive, planned: Directive, *, closing: bool = False, why: str | None = None
) -> Directive:
    """The directive that a segment has from now on.

    Args:
        present: The one before.
        planned: The one of the plan.
        closing: Whether the study's trials must end; this replaces any other directive.
        why: Why the worker needs its segments to leave; None if it does not.
    """
    if closing and not present.deadline:
        return Directive(Kind.STOP, "the deadline", deadline=True)
    if present.leave:
        return present
    return planned if why is None else Directive(Kind.PAUSE, why)


def deaths_after(failures: int, *, saved: bool) -> int:
    """Deaths in a row without a new checkpoint, with the one of a segment.

    Args:
        failures: Those before the segment.
        saved: Whether the segment has saved a checkpoint.
    """
    return 1 if saved else failures + 1
