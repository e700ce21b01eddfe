"""The results of a check as rows. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

#: Relative: rounding differences of sums over another number of slots, in single precision.
ROUNDING = 1e-6
#: Two pairs of trainings of one kind differ by at most this factor.
ALIKE = 3.0
OUTCOME = "optuna_deadline:check"  #: attribute of a trial: the result of its check, by rows
_OPTIMIZER = "optimizer"


class CheckResult(str, Enum):
    """The result of one training."""

    EXACT = "exact"
    DIFFERS = "differs"
    REFUSED = "refused"  #: in words, if no step was wrong
    CRASHED = "crashed"
    NOT_TRIED = "not tried"


@dataclass(frozen=True)
class Gap:
    """The distance of two trainings; the figures are relative, 0 is bitwise equal."""

    parts: Mapping[str, float] = field(default_factory=dict)  #: weights, optimizer, ...
    unlike: tuple[str, ...] = ()  #: differences without a number, in words
    grows: bool = False  #: whether their batch grows with their slots

    @property
    def figure(self) -> float:
        """The largest figure; infinite if something has no figure."""
        return math.inf if self.unlike else max(self.parts.values(), default=0.0)

    def without_optimizer(self) -> Gap:
        """The gap that judges a move: averages of gradients that cancel have no exact digit."""
        parts = {name: gap for name, gap in self.parts.items() if not name.startswith(_OPTIMIZER)}
        return Gap(parts, self.unlike)

    def __str__(self) -> str:
        if self.unlike:
            return "; ".join(self.unlike)
        if not self.figure:
            return "0"
        worst = max(self.parts, key=lambda name: self.parts[name])
        name = "weights" if self.parts.get("weights") else worst
        return f"{self.parts[name]:.1e} in {name}"


@dataclass(frozen=True)
class CheckRow:
    """One training and its result."""

    name: str
    result: CheckResult
    words: str = ""
    advice: str = ""
    figure: float | None = None
    excused: bool = False  #: differs no more than repeated trainings do

    @property
    def bad(self) -> bool:
        """Whether the model would differ silently, or a trial be lost."""
        return self.result is CheckResult.CRASHED or (
            self.result is CheckResult.DIFFERS and not self.excused
        )

    def __str__(self) -> str:
        if self.result is CheckResult.EXACT:
            return f"exact ({self.words})" if self.words else "exact"
        joint = (
            " by"
            if self.result is CheckResult.DIFFERS and (self.words or "x")[0].isdigit()
            else ":"
        )
        return f"{self.result.value}{joint} {self.words}" if self.words else self.result.value


def row_of_gap(
    name: str,
    gap: Gap,
    *,
    tolerance: float = 0.0,
    noise: float = 0.0,
    noise_is: str = "the same training does twice",
    advice: str = "",
) -> CheckRow:
    """A row from a gap.

    Args:
        name: Of the row.
        gap: To the undisturbed training.
        tolerance: Up to which it is exact.
        noise: How far trainings are apart for a reason other than a pause or a move.
        noise_is: That reason, for "differs by no more than".
        advice: What to do if it differs.
    """
    figure = gap.figure
    if figure <= tolerance:
        words = f"{figure:.1e}, by rounding" if figure else ""
        return CheckRow(name, CheckResult.EXACT, words, figure=figure)
    if noise and figure <= ALIKE * noise:
        words = f"{gap}, no more than {noise_is} ({noise:.1e})"
        return CheckRow(name, CheckResult.DIFFERS, words, figure=figure, excused=True)
    return CheckRow(name, CheckResult.DIFFERS, str(gap), advice, figure)


def relative(one: float, other: float) -> float:
    """The difference of two numbers relative to the larger one."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other))


def values_apart(one: Mapping[int, float], other: Mapping[int, float]) -> Gap:
    """The distance of the reported values of two trainings, by step."""
    unlike = [
        f"step {step} is reported {'undisturbed' if step in one else 'otherwise'} only"
        for step in sorted(one.keys() ^ other.keys())
    ]
    figure = max((relative(one[step], other[step]) for step in one.keys() & other), default=0.0)
    return Gap({"reported values": figure}, tuple(unlike[:1]))


def merged(gaps: Iterable[Gap]) -> Gap:
    """All parts of several gaps."""
    parts: dict[str, float] = {}
    unlike: list[str] = []
    grows = False
    for gap in gaps:
        parts.update(gap.parts)
        unlike += gap.unlike
        grows |= gap.grows
    return Gap(parts, tuple(unlike), grows)


def summed_up(outcome: Mapping[str, str]) -> str:
    """The result of a check in one line.

    Args:
        outcome: The rows' results in words, by name.
    """
    others = [f"{name}: {words}" for name, words in outcome.items() if words[:5] != "exact"]
    exact = len(outcome) - len(others)
    return "; ".join([f"{exact} of {len(outcome)} ways to train are exact", *others])


def exit_code(rows: Iterable[CheckRow]) -> int:
    """0 if all is exact or refused in words, else 1."""
    return int(any(row.bad for row in rows))
