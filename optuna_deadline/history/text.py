"""Events, instants, lengths and values as text for users."""

from __future__ import annotations

import math
from datetime import datetime

from optuna_deadline._numbers import format_count
from optuna_deadline.allocation.records import Event
from optuna_deadline.errors import at_most
from optuna_deadline.values.deadlines import clock_words, format_duration


def until_deadline(time_left: float, settled: bool = False) -> str:
    """The time to the deadline, or since it, in words."""
    if settled:
        return "the study has ended"
    if time_left <= 0:
        return f"the deadline was {format_duration(-time_left)} ago"
    return f"deadline in {format_duration(time_left)}"


def format_time_of_day(instant: float) -> str:
    """An instant as the local time of day, with the date if it is on another day."""
    try:
        when = datetime.fromtimestamp(instant)
    except (OverflowError, ValueError, OSError):
        return "the end of time"
    same = when.date() == datetime.now().date()
    return when.strftime("%H:%M:%S" if same else "%b %d, %H:%M")


def format_value(number: float | None) -> str:
    """A value with four significant figures; a dash for None."""
    return "-" if number is None or math.isnan(number) else f"{number:.4g}"


def format_percent(part: float, whole: float) -> str:
    """A share as "91 %"; a dash without a whole."""
    return f"{100 * part / whole:.0f} %" if whole > 0 else "-"


def request_sentence(event: Event, trial: str) -> str:
    """Describe a user's request; empty for other events.

    Args:
        event: The event.
        trial: The name of its trial.
    """
    detail = event.detail
    if event.kind == "hold":
        return f"{trial} is {'held' if detail['held'] else 'resumed'} by request"
    if event.kind == "pin":
        if detail["slots"] is None:
            return f"{trial} is no longer pinned"
        return f"{trial} is pinned to {format_count(int(str(detail['slots'])), 'slot')}"
    if event.kind == "price":
        of = f" of {detail['type']}" if detail["type"] else ""
        return f"a slot{of} costs {float(str(detail['per_hour'])):g} an hour"
    if event.kind == "budget":
        return f"the budget is {float(str(detail['amount'])):g}"
    if event.kind == "limit":
        return f"{trial} trains on {at_most(int(str(detail['slots'])))}: {detail['reason']}"
    if event.kind == "device":
        slot = f"{detail['device']} on {detail['host']}"
        if detail["in_use"]:
            return f"{slot} is tried again"
        return f"{slot} is out of use: trials fail there ({detail['reason']})"
    if event.kind == "clock":
        return clock_words(float(str(detail["step"])))
    if event.kind == "drain":
        return f"{detail['host']} is {'' if detail['drained'] else 'no longer '}drained"
    return ""


def event_sentence(event: Event, study: str, place: str) -> str:
    """Describe an event; empty for events that repeat another one.

    Args:
        event: The event.
        study: The name of its study.
        place: The name of its slot.
    """
    detail, trial = event.detail, f"trial {event.number} of {study}"
    why = detail.get("reason")
    reason = f" ({why})" if why and why != event.kind else ""
    size = format_count(int(str(detail.get("slots") or 0)), "slot")
    hosts = detail.get("hosts")
    where = f" on {' and '.join(hosts)}" if isinstance(hosts, list) else ""
    sentences = {
        "plan": f"planned for {trial}: {why}",
        "start": f"{trial} starts on {size}{where}" if "slots" in detail else f"{trial} starts",
        "resume": f"{trial} resumes on {size}{where}",
        "paused": f"{trial} has released its slots{reason}",
        "retired": f"{trial} is pruned{reason}",
        "failed": f"{trial} failed{reason}",
        "complete": f"{trial} is complete{reason}",
        "lost": f"{trial} lost its worker",
        "reap": f"{place} is freed: a worker of {study} died",
        "lend": f"{place} is lent to {study}",
        "register": f"a worker joins {study} on {detail.get('host')}",
        "leave": f"a worker of {study} leaves",
        "gate": f"{study}: {'new' if detail.get('open') else 'no new'} trials start",
        "pool": f"{study} pays for {size}",
        "rest": f"{study} has no worker left and pays for no slots",
        "settle": f"{study} has ended",
        "fold": f"of the events of {study} before, the numbers are kept",
    }
    return sentences.get(event.kind) or request_sentence(event, trial)
