"""The directives of a worker to a running trial."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(str, Enum):
    """The four directives."""

    KEEP = "keep"  #: continue
    RESIZE = "resize"  #: checkpoint and leave; the trial resumes with another number of slots
    PAUSE = "pause"  #: checkpoint and leave; the trial may be resumed later
    STOP = "stop"  #: leave; the trial is not resumed


@dataclass(frozen=True)
class Directive:
    """A directive to a running segment, with its reason in words for users."""

    kind: Kind = Kind.KEEP
    reason: str = ""
    seq: int = 0
    deadline: bool = False  #: the deadline has come; the trial is not pruned
    keep_warm: bool = False  #: the process may wait in memory without its slot until it resumes

    @property
    def leave(self) -> bool:
        """Whether the ranks have to leave their slots."""
        return self.kind is not Kind.KEEP


KEEP = Directive()
