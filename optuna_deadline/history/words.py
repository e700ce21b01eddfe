"""Instants, lengths and values as a person reads them."""

from __future__ import annotations

import math
from datetime import datetime


def roughly(seconds: float) -> str:
    """A length with two figures at most: "9.5 s", "42 s", "3 min", "2 h 5 min", "3 d 4 h"."""
    if seconds < 0:
        return f"-{roughly(-seconds)}"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    if seconds < 599.5:
        return _pair(round(seconds), 60, "min", "s")
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return _pair(minutes, 60, "h", "min")
    return _pair(round(minutes / 60), 24, "d", "h")


def _pair(number: int, size: int, unit: str, smaller: str) -> str:
    whole, rest = divmod(number, size)
    return f"{whole} {unit} {rest} {smaller}" if rest else f"{whole} {unit}"


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
