"""What a rank and its worker say to each other: one record per message, checked where it is made.

A record is made when a rank says something, and again when the worker has read it. So a wrong
value is an error inside the objective, and a peer that sends one concerns its own trial alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

from optuna_deadline.directives import Directive
from optuna_deadline.errors import at_most
from optuna_deadline.segments import MAX_REGIME

#: Optuna's tables and those of this package keep a step in 32 bits.
MAX_STEP = 2**31 - 1

#: All kinds of messages by their names.
MESSAGES: dict[str, type[Message]] = {}


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


def checked_finite(value: float) -> float:
    """Check that a position or a time is finite.

    Raises:
        ValueError: It is not.
    """
    if not math.isfinite(value):
        raise ValueError(f"A position and a time of training must be finite, but one is {value}.")
    return value


def checked_text(value: str) -> str:
    """Check that PostgreSQL can keep a text.

    Raises:
        ValueError: It has a character of code 0.
    """
    if "\0" in value:
        raise ValueError(f"Text without the character of code 0 can be kept, not {value!r:.100}.")
    return value


#: What fields are beside their type: the check raises an error for another value.
Step = Annotated[int, checked_step]
Finite = Annotated[float, checked_finite]
Slots = Annotated[int, at_most]
Regime = Annotated[str, checked_regime]
Text = Annotated[str, checked_text]


@dataclass(frozen=True)
class Message:
    """A message; its fields are checked when it is made."""

    _checked: ClassVar[list[tuple[str, Sequence[Any], Callable[[Any], object] | None]]]

    def __init_subclass__(cls) -> None:
        MESSAGES[cls.__name__] = cls
        cls._checked = [(name, *_checks_of(hint)) for name, hint in _hints_of(cls)]

    def __post_init__(self) -> None:
        """Check the fields by their types.

        Raises:
            ValueError: One has another type, or a value that the database would refuse later.
            DeadlineError: The same, for a limit.
        """
        for name, kinds, check in self._checked:
            value = getattr(self, name)
            if not any(_is_of(kind, value) for kind in kinds):
                raise ValueError(f"A message cannot have {value!r:.100} as its {name}.")
            if check is not None:
                check(value)


def _hints_of(message: type[Message]) -> list[tuple[str, Any]]:
    hints = get_type_hints(message, include_extras=True)
    return [(name, hint) for name, hint in hints.items() if not name.startswith("_")]


def _checks_of(hint: Any) -> tuple[Sequence[Any], Callable[[Any], object] | None]:
    """The types that a field may have, and its further check."""
    check = None
    if get_origin(hint) is Annotated:
        hint, check = get_args(hint)
    return get_args(hint) if isinstance(hint, UnionType) else [get_origin(hint) or hint], check


def _is_of(kind: Any, value: object) -> bool:
    if kind in (int, float):
        return (type(value) is int and abs(value) < 2**63) or (type(value) is kind is float)
    return kind is Any or isinstance(value, kind)


# From a rank to the worker.


@dataclass(frozen=True)
class Reported(Message):
    """A value of the objective."""

    value: float
    step: Step
    trained: Finite  #: seconds of training in this segment


@dataclass(frozen=True)
class Advanced(Message):
    """A position in the training, in reports, and the use of the time since the first one."""

    start: Finite  #: the segment's first position
    position: Finite
    trained: Finite  #: seconds from the first to this one
    validated: Finite = 0.0  #: seconds of validations since the first one
    waited: Finite = 0.0  #: seconds of waiting for plans since the first one


@dataclass(frozen=True)
class LastStep(Message):
    """The step at which the objective ends."""

    step: Step


@dataclass(frozen=True)
class BatchSize(Message):
    """The batch that the number of slots must divide."""

    size: Step


@dataclass(frozen=True)
class RegimeNamed(Message):
    """What decides from now on how long a step takes."""

    name: Regime


@dataclass(frozen=True)
class Limited(Message):
    """The most slots that the trial can train on, and why."""

    slots: Slots
    reason: Text


@dataclass(frozen=True)
class Pausable(Message):
    """Whether the objective can resume."""

    pausable: bool


@dataclass(frozen=True)
class Saved(Message):
    """A checkpoint that is complete."""

    path: Text
    step: Step
    value: float | None
    size: int  #: bytes
    checksum: Text


@dataclass(frozen=True)
class NotSaved(Message):
    """A checkpoint that could not be written, and why."""

    step: Step
    why: Text


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

    why: Text


@dataclass(frozen=True)
class Question(Message):
    """A call of the trial or of the study, which the worker makes and answers."""

    number: int
    method: Text
    args: Sequence[Any]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class DirectiveQuestion(Message):
    """The n-th question for the directive, which every rank of a gang asks."""

    number: int
    call: int


@dataclass(frozen=True)
class Returned(Message):
    """The end: the objective has returned."""

    value: float | None


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


#: How the objective of a rank ended.
End = Returned | Left | Pruned | Raised


@dataclass(frozen=True)
class Introduction(Message):
    """A rank of another host connects to the worker that leads its trial."""

    trial: int
    fence: int
    index: int


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

    step: Step
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
