"""Decisions and event details of transitions, which every store shares. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from optuna_deadline.allocation.records import MachineInfo

#: Seconds by which two readings of a clock may differ beyond the time of their round trips.
CLOCK_TOLERANCE = 0.25
_A_LITTLE = 1e-4  # seconds


def election_outcome(
    holder: str | None, term: int, expires: float, worker_id: str, now: float, ttl: float
) -> int | None:
    """The outcome of an election: the candidate's term, None while another term runs.

    A lease that expires too late was written before the clock was set back. The same holder gets a
    new term after its lease expires, since another one may have been elected in between.
    """
    rules = now <= expires <= now + ttl + CLOCK_TOLERANCE
    if holder not in (None, worker_id) and rules:
        return None
    return int(term) if holder == worker_id and rules else int(term) + 1


def began_at(started: float, deadline: float, now: float) -> float:
    """When a study began, by the clock as it is now.

    A clock that was set back while no process watched puts the stored start in the future, where
    a new deadline may come before it.
    """
    return min(started, deadline, now)


def as_planned(
    desired_slots: int,
    desired: Sequence[tuple[str, int]],
    slot_ids: Sequence[int],
    others: Mapping[str, Sequence[int]],
) -> bool:
    """Whether these are the planned slots of the planned members."""
    asked = {name: len(ids) for name, ids in others.items()}
    return bool(slot_ids) and dict(desired) == asked and all(asked.values()) and (
        desired_slots == len(slot_ids) + sum(asked.values())
    )  # fmt: skip


def kept_ids(newest_first: Sequence[tuple[int, float | None]], keep: int) -> set[int]:
    """The checkpoints that stay, of (id, value): the newest, the lowest and the highest value."""
    kept: set[int] = set()
    lowest: tuple[int, float] | None = None
    highest: tuple[int, float] | None = None
    for place, (row_id, value) in enumerate(newest_first):
        if place < keep:
            kept.add(row_id)
        if value is not None:
            if lowest is None or value < lowest[1]:
                lowest = row_id, value
            if highest is None or value > highest[1]:
                highest = row_id, value
    if lowest is not None and highest is not None:
        kept |= {lowest[0], highest[0]}
    return kept


def none_if_nan(value: float | None) -> float | None:
    """None for NaN, which SQLite does not have and which compares with nothing."""
    return None if value is None or math.isnan(value) else value


def earlier_end(deadline: float, before: float | None, end: float) -> float:
    """A new end that is not later than the one before."""
    return min(end, deadline if before is None else before) - _A_LITTLE


def placement_detail(
    others: Sequence[tuple[str, int]], hosts: Sequence[str] = ()
) -> dict[str, Any]:
    """The event detail that names the other workers and all hosts."""
    if not others:
        return {}
    return {"others": dict(others)} | ({"hosts": sorted({*hosts})} if hosts else {})


def duration_detail(seconds: float | None) -> dict[str, Any]:
    """The event detail with the duration of the plan."""
    return {} if seconds is None else {"seconds": round(seconds, 6)}


def types_detail(types: Mapping[str, int] | None) -> dict[str, Any]:
    """The event detail of a pool's slots by host type, if the prices depend on it."""
    return {} if types is None else {"types": dict(types)}


def host_type_detail(machine_info: MachineInfo) -> dict[str, Any]:
    """The event detail of a host's type, if it has one."""
    return {} if machine_info.host_type is None else {"type": machine_info.host_type}
