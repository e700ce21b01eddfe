"""Instants, lengths and values as a person reads them."""

from __future__ import annotations

import math
from datetime import datetime


def roughly(seconds: float) -> str:
    """A length with two figures at most: "9.5 s", "42 s", "3 min", "2 h 5 min", "3 d 4 h"."""
    if seconds < 0:
        return f"-{roughly(-seconds)}"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    for unit, size, below, smaller in (("h", 3600, 60, "min"), ("d", 86400, 3600, "h")):
        if seconds < size:
            return f"{seconds / below:.0f} {smaller}"
        if seconds < size * (24 if unit == "h" else math.inf):
            whole, rest = divmod(round(seconds / below), size // below)
            return f"{whole} {unit} {rest} {smaller}" if rest else f"{whole} {unit}"
    raise AssertionError


def until_deadline(time_left: float, settled: bool = False) -> str:
    """How far the deadline is."""
    if settled:
        return "the study has ended"
    if time_left <= 0:
        return f"the deadline was {roughly(-time_left)} ago"
    return f"deadline in {roughly(time_left)}"


def at_clock(instant: float) -> str:
    """An instant as the local time of day, with the date where it is another day's."""
    try:
        when = datetime.fromtimestamp(instant)
    except (OverflowError, ValueError, OSError):
        return "the end of time"
    same = when.date() == datetime.now().date()
    return when.strftime("%H:%M:%S" if same else "%b %d, %H:%M")


def value(number: float | None) -> str:
    """A value with four significant figures; a dash where there is none."""
    return "-" if number is None or math.isnan(number) else f"{number:.4g}"


def count(number: int, what: str) -> str:
    """So many things: "1 slot", "3 slots"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def percent(part: float, whole: float) -> str:
    """A share as "91 %"; a dash of nothing."""
    return f"{100 * part / whole:.0f} %" if whole > 0 else "-"
