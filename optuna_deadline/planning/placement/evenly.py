"""What was placed on fewer slots than planned, in sizes that divide its trial's batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optuna_deadline.allocation.records import Assignment, Desired
from optuna_deadline.policies.fitting import fitting, says


def evenly(lines: Sequence[Assignment], current: Mapping[int, Desired]) -> list[Assignment]:
    """The same lines, in sizes that fit; a size that a person has pinned is let be.

    Args:
        lines: As they were placed.
        current: The trials as the table has them.
    """
    return [_fitted(line, current.get(line.number)) for line in lines]


def _fitted(line: Assignment, known: Desired | None) -> Assignment:
    if line.mode != "run" or known is None or known.batch is None or known.pinned is not None:
        return line
    size = fitting(line.slots, known.batch)
    if size == line.slots:
        return line
    hosts = 1 + len(line.others)  # which give as many slots each
    while hosts > 1 and size % hosts:
        size = fitting(size - 1, known.batch) if size > hosts else 1
        hosts = hosts if size >= hosts else 1
    if hosts == 1:
        size = fitting(line.slots - sum(slots for _, slots in line.others), known.batch)
    others = tuple((name, size // hosts) for name, _ in line.others) if hosts > 1 else ()
    reason = f"{line.reason}; {says(line.slots, known.batch)}"
    return line._replace(slots=size, others=others, reason=reason)
