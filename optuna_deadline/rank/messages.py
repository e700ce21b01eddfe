"""What a rank and its worker say to each other: one record per message, checked where it is made.

A record is made when a rank says something, and again when the worker has read it. So a wrong
value is an error inside the objective, and a peer that sends one concerns its own trial alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from optuna_deadline.directives import Directive
from optuna_deadline.errors import at_most
from optuna_deadline.segments import MAX_REGIME

#: Optuna's tables and those of this package keep a step in 32 bits.
MAX_STEP = 2**31 - 1

#: All kinds of messages by their names.
MESSAGES: dict[str, type[Message]] = {}


@dataclass(frozen=True)
class Message:
    """A message; its fields are checked when it is made."""

    def __init_subclass__(cls) -> None:
        MESSAGES[cls.__name__] = cls

    def __post_init__(self) -> None:
        """Check the fields; raises ValueError."""


# From a rank to the worker.


@dataclass(frozen=True)
class Reported(Message):
    """A value of the objective."""

    value: float
    step: int
    trained: float  #: seconds of training in this segment

    def __post_init__(self) -> None:
        _check_step(self.step)
        _check_numbers(self.value)
        _check_numbers(self.trained, finite=True)


@dataclass(frozen=True)
class Advanced(Message):
    """A position in the training, in reports."""

    start: float  #: the segment's first position
    position: float
    trained: float  #: seconds from the first to this one

    def __post_init__(self) -> None:
        _check_numbers(self.start, self.position)
        _check_numbers(self.trained, finite=True)
        if not math.isfinite(self.start) or not math.isfinite(self.position):
            raise ValueError(f"A position must be finite, but is {self.position}.")


@dataclass(frozen=True)
class LastStep(Message):
    """The step at which the objective ends."""

    step: int

    def __post_init__(self) -> None:
        _check_step(self.step)


@dataclass(frozen=True)
class BatchSize(Message):
    """The batch that the number of slots must divide."""

    size: int

    def __post_init__(self) -> None:
        _check_step(self.size)


@dataclass(frozen=True)
class RegimeNamed(Message):
    """What decides from now on how long a step takes."""

    name: str

    def __post_init__(self) -> None:
        checked_regime(self.name)


@dataclass(frozen=True)
class Limited(Message):
    """The most slots that the trial can train on, and why."""

    slots: int
    reason: str

    def __post_init__(self) -> None:
        at_most(self.slots)  # raises for an invalid limit
        _check_text(self.reason)


@dataclass(frozen=True)
class Pausable(Message):
    """Whether the objective can resume."""

    pausable: bool

    def __post_init__(self) -> None:
        _check(type(self.pausable) is bool, self.pausable)


@dataclass(frozen=True)
class Saved(Message):
    """A checkpoint that is complete."""

    path: str
    step: int
    value: float | None
    size: int  #: bytes
    checksum: str

    def __post_init__(self) -> None:
        _check_step(self.step)
        _check_text(self.path, self.checksum)
        _check(type(self.size) is int, self.size)
        _check_numbers(self.size)
        if self.value is not None:
            _check_numbers(self.value)


@dataclass(frozen=True)
class NotSaved(Message):
    """A checkpoint that could not be written, and why."""

    step: int
    why: str

    def __post_init__(self) -> None:
        _check_step(self.step)
        _check_text(self.why)


@dataclass(frozen=True)
class StaysWarm(Message):
    """The process needs its slot no more, and waits for the trial's next segment."""


@dataclass(frozen=True)
class Obeys(Message):
    """The objective knows that it is to leave, and saves."""


@dataclass(frozen=True)
class Waits(Message):
    """A warm process is alive."""


@dataclass(frozen=True)
class Leaves(Message):
    """Another worker of the gang leaves, and why."""

    why: str

    def __post_init__(self) -> None:
        _check_text(self.why)


@dataclass(frozen=True)
class Question(Message):
    """A call of the trial or of the study, which the worker makes and answers."""

    number: int
    method: str
    args: Sequence[Any]
    kwargs: dict[str, Any]

    def __post_init__(self) -> None:
        _check(type(self.number) is int, self.number)
        _check_text(self.method)
        _check(isinstance(self.args, (list, tuple)), self.args)
        _check(isinstance(self.kwargs, dict) and all(map(_is_text, self.kwargs)), self.kwargs)


@dataclass(frozen=True)
class DirectiveQuestion(Message):
    """The n-th question for the directive, which every rank of a gang asks."""

    number: int
    call: int

    def __post_init__(self) -> None:
        _check(type(self.number) is int, self.number)
        _check(type(self.call) is int, self.call)


@dataclass(frozen=True)
class Returned(Message):
    """The end: the objective has returned."""

    value: float | None

    def __post_init__(self) -> None:
        _check(self.value is None or type(self.value) is float, self.value)


@dataclass(frozen=True)
class Left(Message):
    """The end: the segment was left, as directed or for a limit."""


@dataclass(frozen=True)
class Pruned(Message):
    """The end: the objective raised ``TrialPruned``."""


@dataclass(frozen=True)
class Raised(Message):
    """The end: the objective raised another error."""

    line: str
    trace: str

    def __post_init__(self) -> None:
        _check(type(self.line) is str and type(self.trace) is str, self.line)


#: How the objective of a rank ended.
End = Returned | Left | Pruned | Raised


@dataclass(frozen=True)
class Introduction(Message):
    """A rank of another host connects to the worker that leads its trial."""

    trial: int
    fence: int
    index: int

    def __post_init__(self) -> None:
        _check({type(self.trial), type(self.fence), type(self.index)} == {int}, self.trial)


# From a worker to its ranks.


@dataclass(frozen=True)
class Welcome(Message):
    """The worker leads the trial; the code of the message shows that it knows the key."""


@dataclass(frozen=True)
class Directed(Message):
    """The directive in force."""

    directive: Directive


@dataclass(frozen=True)
class Planned(Message):
    """A plan has seen the report of a step."""

    step: int
    next_look: int  #: no report of an earlier step decides about the trial


@dataclass(frozen=True)
class Answered(Message):
    """The answer to a question, or its error."""

    number: int
    good: bool
    value: Any


@dataclass(frozen=True)
class EndHeard(Message):
    """The end message has arrived."""


@dataclass(frozen=True)
class OfThisHost(Message):
    """A message that only the worker of the rank's own host may send."""


@dataclass(frozen=True)
class Trusted(OfThisHost):
    """Until when the slots are the rank's, on :func:`time.monotonic`."""

    until: float


@dataclass(frozen=True)
class Resumed(OfThisHost):
    """A warm process goes on as the rank of the next segment."""

    fence: int
    devices: tuple[str, ...]


@dataclass(frozen=True)
class PassOn(OfThisHost):
    """A message for the leader, on another host."""

    message: Message


def checked_step(step: int) -> int:
    """Check that the databases can keep a step.

    Raises:
        ValueError: It is negative or too large.
    """
    step = int(step)
    if not 0 <= step <= MAX_STEP:
        raise ValueError(
            f"A step must be from 0 to {MAX_STEP:,}, but got {step:,}: report after so many "
            "epochs, batches or thousands of tokens."
        )
    return step


def checked_regime(name: str) -> str:
    """Check that the databases can keep the name of a regime.

    Raises:
        ValueError: It is empty, too long or not printable.
    """
    if not 0 < len(name) <= MAX_REGIME or not name.isprintable():
        raise ValueError(
            f"Name a regime in 1 to {MAX_REGIME} printable characters, not {name!r:.100}."
        )
    return name


def _check(good: bool, value: object) -> None:
    if not good:
        raise ValueError(f"A message cannot have the value {value!r:.100}.")


def _check_step(value: int) -> None:
    _check(type(value) is int, value)
    checked_step(value)


def _is_text(value: object) -> bool:
    return type(value) is str and "\0" not in value


def _check_text(*values: str) -> None:
    for value in values:
        _check(_is_text(value), value)


def _check_numbers(*values: float, finite: bool = False) -> None:
    for value in values:
        known = type(value) is float or (type(value) is int and abs(value) < 2**63)
        _check(known and (math.isfinite(value) or not finite), value)
