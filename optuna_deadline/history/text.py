"""One event of the audit as one line for a person."""

from __future__ import annotations

from optuna_deadline.allocation.records import Event
from optuna_deadline.errors import at_most
from optuna_deadline.history.words import count


def asked(event: Event, trial: str) -> str:
    """What a person asked for; nothing of other events.

    Args:
        event: A line of the audit.
        trial: What its trial is called.
    """
    detail = event.detail
    if event.kind == "hold":
        return f"{trial} is held by request" if detail["held"] else f"{trial} may go on"
    if event.kind == "pin":
        if detail["slots"] is None:
            return f"{trial} is no longer pinned"
        return f"{trial} is pinned to {count(int(str(detail['slots'])), 'slot')}"
    if event.kind == "price":
        of = f" of {detail['type']}" if detail["type"] else ""
        return f"a slot{of} costs {float(str(detail['per_hour'])):g} for an hour"
    if event.kind == "limit":
        return f"{trial} trains on {at_most(int(str(detail['slots'])))}: {detail['reason']}"
    if event.kind == "drain":
        return f"{detail['host']} is {'' if detail['drained'] else 'no longer '}drained"
    return ""


def tell(event: Event, study: str, place: str) -> str:
    """What happened; nothing of events that only repeat what another one says.

    Args:
        event: A line of the audit.
        study: The name of its study.
        place: The name of its slot.
    """
    detail, trial = event.detail, f"trial {event.number} of {study}"
    why = detail.get("reason")
    reason = f" ({why})" if why and why != event.kind else ""
    size = count(int(str(detail.get("slots") or 0)), "slot")
    hosts = detail.get("hosts")
    where = f" on {' and '.join(hosts)}" if isinstance(hosts, list) else ""
    said = {
        "plan": f"planned for {trial}: {why}",
        "start": f"{trial} starts on {size}{where}",
        "resume": f"{trial} goes on with {size}{where}",
        "paused": f"{trial} has left its slots{reason}",
        "retired": f"{trial} is given up{reason}",
        "failed": f"{trial} failed{reason}",
        "complete": f"{trial} is complete{reason}",
        "lost": f"{trial} lost its worker",
        "reap": f"{place} is taken from a dead worker of {study}",
        "lend": f"{place} is lent to {study}",
        "register": f"a worker joins {study} on {detail.get('host')}",
        "leave": f"a worker of {study} leaves",
        "gate": f"{study}: {'new' if detail.get('open') else 'no new'} trials from here on",
        "pool": f"{study} pays for {size}",
        "rest": f"{study} has no worker left and pays for nothing",
        "settle": f"{study} has ended",
    }
    return said.get(event.kind) or asked(event, trial)
