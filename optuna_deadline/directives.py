"""The directives of a worker to a running trial."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from optuna_deadline.allocation.records import OtherWorkers, PlannedTrial


class Kind(str, Enum):
    """The four things a running segment can be told."""

    KEEP = "keep"  #: go on training
    RESIZE = "resize"  #: checkpoint and leave; the trial goes on with another number of slots
    PAUSE = "pause"  #: checkpoint and leave; the trial may be resumed later
    STOP = "stop"  #: leave; the trial is not resumed


@dataclass(frozen=True)
class Directive:
    """One order to a running segment, with the reason in words a user understands."""

    kind: Kind = Kind.KEEP
    reason: str = ""
    seq: int = 0
    deadline: bool = False  #: the time is up, which is no judgement on the trial
    park: bool = False  #: the process may stay, without its slot, until the trial comes back

    @property
    def leave(self) -> bool:
        """Whether the ranks have to leave their slots."""
        return self.kind is not Kind.KEEP


KEEP = Directive()


def directive_for(
    row: PlannedTrial, worker_id: str, size: int, others: OtherWorkers = ()
) -> Directive:
    """What the plan's line tells a worker's segment of ``size`` slots, some of other workers."""
    if row.mode == "pause":
        return Directive(Kind.PAUSE, row.reason)
    if row.mode == "stop":
        return Directive(Kind.STOP, row.reason)
    if (row.worker, row.slots, sorted(row.others)) != (worker_id, size, sorted(others)):
        return Directive(Kind.RESIZE, row.reason)
    return KEEP
