"""The rank's side of a check: a segment that leaves at a requested step."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna_deadline.checking.distance import file_distance, loop_distance, packed_distance
from optuna_deadline.directives import KEEP, Directive, Kind
from optuna_deadline.rank.messages import Message
from optuna_deadline.rank.objective import Objective, ObjectiveSource
from optuna_deadline.rank.trial import RankSegment, RankTrial

_LEAVE = Directive(Kind.RESIZE, "the check moves it")
_COMPARE = "optuna_deadline_torch.comparing"

#: Trainings that differ for a harmless reason, and the functions that cause it.
OTHER_DRAWS, OTHER_ROUNDING = "draw_otherwise", "round_otherwise"
VARIANTS = (OTHER_DRAWS, OTHER_ROUNDING)


@dataclass(frozen=True)
class CheckInstruction:
    """The instructions of a check to a rank."""

    leave_at: int = 0  #: the step, counted over all segments
    done: int = 0  #: the steps before this segment
    variant: tuple[str, int] | None = None  #: a name of :data:`VARIANTS`, and which repetition
    compare: tuple[str, str] | None = None  #: two checkpoints to compare, instead of a training
    log: str | None = None  #: where the objective's output goes


@dataclass(frozen=True)
class Looked(Message):
    """The objective uses its segment."""


@dataclass(frozen=True)
class StepTaken(Message):
    """A step, counted over all segments, and the position after it."""

    number: int
    position: float


@dataclass(frozen=True)
class DigitMeasured(Message):
    """The last digit of the computation, relative."""

    digit: float


@dataclass(frozen=True)
class Compared(Message):
    """What two checkpoints have unlike."""

    found: dict[str, Any]


@dataclass(frozen=True)
class CheckedSource(ObjectiveSource):
    """An objective that ranks run under a check."""

    def load(self) -> Objective:
        """Import or unpickle it."""
        return CheckedObjective(super().load())


class CheckedObjective:
    """Runs the objective with a segment that leaves at the check's step.

    Args:
        objective: The user's.
    """

    def __init__(self, objective: Objective) -> None:
        self._objective = objective

    def __call__(self, trial: RankTrial) -> float:
        """In a rank."""
        link = trial._link
        order = CheckInstruction(**link.request("order"))
        if order.log is not None:
            log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
        if order.compare is not None:
            link.send(Compared(_compared(*map(Path, order.compare))))
            return 0.0
        checked = CheckedTrial(trial, order)
        if order.variant is None:
            return self._objective(checked)
        name, number = order.variant
        digit = getattr(importlib.import_module(_COMPARE), name)(number)
        try:
            return self._objective(checked)
        finally:
            link.send(DigitMeasured(digit()))


class CheckedTrial(RankTrial):
    """The rank's trial with the check's segment.

    Args:
        trial: The rank's.
        order: The instructions.
    """

    def __init__(self, trial: RankTrial, order: CheckInstruction) -> None:
        super().__init__(trial._link, trial._segment, trial.number)
        self._checked = CheckedSegment(trial._segment, order)
        self._looked = False

    @property
    def segment(self) -> Any:
        """Where to resume from, where to save, whether to leave."""
        if not self._looked:
            self._looked = self._pausable = True
            self._link.send(Looked())
        return self._checked


class CheckedSegment:
    """A rank's segment that leaves at a step; a step is a read of the directive.

    Args:
        segment: The rank's.
        order: The instructions.
    """

    checked = True  #: so that an objective with ``check=True`` starts no check within a check

    def __init__(self, segment: RankSegment, order: CheckInstruction) -> None:
        self._segment = segment
        self._order = order
        self._done = order.done
        self._position = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._segment, name)

    def newest(self) -> Directive:
        """To leave, from the requested step on."""
        self._done += 1
        if self._segment.rank == 0:
            self._segment._link.send(StepTaken(self._done, self._position))
        return _LEAVE if self._done >= self._order.leave_at else KEEP

    def directive(self) -> Directive:
        """The count, which is equal on every rank."""
        return self.newest()

    def progress(self, position: float) -> None:
        """Store the progress for the next step."""
        self._position = position
        self._segment.reports_position = True


def _compared(one: Path, other: Path) -> dict[str, Any]:
    try:
        compare = importlib.import_module(_COMPARE).compare
    except ImportError:  # an objective without torch has its own kind of checkpoints
        found = packed_distance(one, other) or loop_distance(one, other)
        return found or file_distance(one, other)
    return dict(compare(one, other))
