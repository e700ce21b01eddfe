"""Deadlines in the notation of users: a duration ("2h30m") or an instant with its zone."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Union

from optuna_deadline._numbers import plain_number
from optuna_deadline.errors import DeadlineError, spelled

DeadlineLike = Union[str, float, timedelta, datetime, "Deadline"]

_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_UNIT = re.compile(
    r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(days?|d|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s)(?![a-z])",
    re.IGNORECASE,
)
_INSTANT = re.compile(
    r"(?P<day>\d{4}-\d{2}-\d{2})[T ](?P<time>\d{2}:\d{2}(?::\d{2})?)(?:[.,](?P<fraction>\d+))?"
    r"\s*(?P<zone>Z|[+-]\d{2}(?::?\d{2})?)?",
    re.IGNORECASE,
)
_LONGEST = 100 * 365.25 * 86400.0
_LONGEST_NUMBER = 1e8  #: seconds, about three years; a larger number is probably an instant


@dataclass(frozen=True)
class Deadline:
    """A deadline: exactly one of a duration and an instant.

    Attributes:
        duration: Seconds from the start, or None.
        at: Seconds since the epoch, or None.
    """

    duration: float | None = None
    at: float | None = None

    def __post_init__(self) -> None:
        if (self.duration is None) == (self.at is None):
            raise DeadlineError("A deadline is either a duration or an instant; give one of them.")
        if self.duration is not None and not 0 < self.duration <= _LONGEST:
            raise DeadlineError(
                f"A deadline of {self.duration:g} s cannot be met; give a positive duration below "
                "a hundred years."
            )

    def instant(self, start: float) -> float:
        """The deadline in seconds since the epoch, a duration counted from ``start``."""
        if self.at is not None:
            return self.at
        assert self.duration is not None
        return start + self.duration

    def __str__(self) -> str:
        if self.duration is not None:
            return format_duration(self.duration, units=4)
        assert self.at is not None
        return format_instant(self.at)


def parse_deadline(deadline: DeadlineLike) -> Deadline:
    """Parse a deadline.
    Args:
        deadline: A :class:`~datetime.timedelta`, an aware :class:`~datetime.datetime`, a duration
            such as ``"2h30m"``, ``"90s"``, ``"1.5h"`` or ``"1d2h"``, a number of seconds, or an
            ISO 8601 time with its zone such as ``"2026-11-21T18:00:00Z"``.

    Raises:
        DeadlineError: It is none of these, has no zone, or is not a positive duration.
    """
    deadline = plain_number(deadline)
    if isinstance(deadline, Deadline):
        return deadline
    if isinstance(deadline, timedelta):
        return Deadline(duration=deadline.total_seconds())
    if isinstance(deadline, datetime):
        return _from_datetime(deadline, repr(deadline.isoformat(sep=" ")))
    if isinstance(deadline, str):
        return _from_text(deadline)
    if isinstance(deadline, (int, float)) and not isinstance(deadline, bool):
        if deadline > _LONGEST_NUMBER:
            raise DeadlineError(
                f"{deadline!r} s are more than three years: give an instant as a datetime with "
                "its zone."
            )
        return Deadline(duration=float(deadline))
    raise DeadlineError(f"{deadline!r} is not a deadline; {_ways()}.")


def parse_duration(duration: DeadlineLike, what: str) -> float:
    """Parse a duration; return its seconds.

    Args:
        duration: What :func:`parse_deadline` takes, but no instant; a text may begin with "+".
        what: The name of the argument, for the error message.

    Raises:
        DeadlineError: It is an instant, or invalid.
    """
    try:
        text = duration.strip().removeprefix("+") if isinstance(duration, str) else duration
        seconds = parse_deadline(text).duration
    except DeadlineError:
        seconds = None
    if seconds is None:
        raise DeadlineError(f"{what} needs a duration such as 10s or 1h, but got {duration!r}.")
    return seconds


def _ways() -> str:
    return spelled(
        "give a timedelta, a text such as '2h30m', or a time with its zone",
        "write a duration such as 2h30m, or a time with its zone such as 2030-01-31T18:00+01:00",
    )


def _from_datetime(moment: datetime, written: str) -> Deadline:
    if moment.utcoffset() is None:
        raise DeadlineError(
            f"The deadline {written} has no time zone; add one, such as 'Z' for UTC or '+01:00' "
            "(in Python: .astimezone() for local time)."
        )
    try:
        return Deadline(at=moment.timestamp())
    except (OverflowError, ValueError):
        raise DeadlineError(f"The deadline {written} is out of range; {_ways()}.") from None


def _from_text(text: str) -> Deadline:
    found = _INSTANT.fullmatch(text.strip())
    if found:
        # Rewritten, since fromisoformat of Python 3.10 accepts neither "Z" nor "+0100".
        fraction = (found["fraction"] or "")[:6].ljust(6, "0")
        zone = (found["zone"] or "").upper().replace("Z", "+00:00").replace(":", "")
        zone = f"{zone[:3]}:{zone[3:] or '00'}" if zone else ""
        time = found["time"] if found["time"].count(":") == 2 else found["time"] + ":00"
        try:
            moment = datetime.fromisoformat(f"{found['day']}T{time}.{fraction}{zone}")
        except ValueError as error:
            raise DeadlineError(f"{text!r} is not a deadline ({error}); {_ways()}.") from None
        return _from_datetime(moment, repr(text))
    return Deadline(duration=_seconds(text))


def _seconds(text: str) -> float:
    total, position, smallest = 0.0, 0, math.inf
    while position < len(text.rstrip()):
        part = _UNIT.match(text, position)
        unit = _SECONDS[part[2][0].lower()] if part else math.inf
        if part is None or unit >= smallest:
            position = 0
            break
        total, position, smallest = total + float(part[1]) * unit, part.end(), unit
    if position == 0:
        hint = ", and say the unit of the number" if _is_number(text) else ""
        raise DeadlineError(f"{text!r} is not a deadline; {_ways()}{hint}.")
    return total


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def format_duration(seconds: float, units: int = 2) -> str:
    """Format a duration: ``"0.4 s"``, ``"1 min 30 s"``, ``"2 h 5 min"``, ``"3 d 4 h"``.

    Args:
        seconds: The duration.
        units: The number of units at most; 4 keeps each second.
    """
    if seconds < 0:
        return f"-{format_duration(-seconds, units)}"
    if seconds < 9.95 or math.isinf(seconds):
        return f"{round(seconds, 1):g} s"
    largest = next(index for index, (_, size) in enumerate(_UNITS) if seconds >= size)
    _, smallest = _UNITS[min(largest + units, len(_UNITS)) - 1]
    rest = round(seconds / smallest) * smallest
    parts = []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts)


def clock_words(step: float) -> str:
    """The sentence on a database whose clock was set forward, or back if negative, by seconds."""
    way = "forward" if step > 0 else "back"
    return (
        f"the database's clock was set {way} by {format_duration(abs(step))}: the deadline is "
        "moved with it, so that the time left stays"
    )


def format_instant(at: float) -> str:
    """Format an instant in local time with its zone.

    Args:
        at: Seconds since the epoch.
    """
    try:
        return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    except (OverflowError, ValueError, OSError):
        return f"{at:.0f} s after 1970"
