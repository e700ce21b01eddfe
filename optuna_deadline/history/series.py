"""Step functions of time: used and available slots, the best value, money spent. Pure.

Also the use and the cost until now and by the end, and measured speeds and overheads.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from optuna_deadline.allocation.records import Event, ReportRow, SegmentRow, Slot
from optuna_deadline.forecasting.regimes import PaceChange
from optuna_deadline.forecasting.throughput import (
    PRIOR_EXPONENT,
    PRIOR_EXPONENT_OF_CPUS,
    Overhead,
    SegmentPace,
    Speedup,
    learn_overhead,
    learn_throughputs,
)
from optuna_deadline.history.records import History, SlotInterval
from optuna_deadline.planning.billing.ledger import in_order, invoice_of, invoices
from optuna_deadline.planning.billing.price_schedule import tariff_of

StepFunction = list[tuple[float, float]]  # (from when on, how much)


def slots_in_use(held: Iterable[SlotInterval]) -> StepFunction:
    """The number of held slots, from each change on."""
    changes: list[tuple[float, int]] = []
    for hold in held:
        changes.append((hold.start, 1))
        if hold.end is not None:
            changes.append((hold.end, -1))
    return _accumulate(changes)


def _accumulate(changes: list[tuple[float, int]]) -> StepFunction:
    steps: StepFunction = []
    level = 0
    for at, change in sorted(changes):
        level += change
        if steps and steps[-1][0] == at:
            steps[-1] = (at, float(level))
        else:
            steps.append((at, float(level)))
    return steps


def training_of(row: SegmentRow, now: float) -> tuple[float, float, float]:
    """When a segment's start-up ended, when it began to stop, and when it ended; at most now.

    The start-up time of a running segment is known from its first step on; until then, all of its
    time counts as starting.
    """
    end = now if row.ended is None else min(now, row.ended)
    begun = end if row.startup is None else min(end, row.granted + row.startup)
    return begun, max(begun, end - (row.stop or 0.0)), end


def slots_starting_or_stopping(history: History) -> StepFunction:
    """The number of held slots that were starting or stopping, from each change on."""
    changes: list[tuple[float, int]] = []
    for row in history.segments:
        begun, leaving, end = training_of(row, history.end)
        changes += [(row.granted, row.slots), (begun, -row.slots)]
        if leaving < end:
            changes += [(leaving, row.slots), (end, -row.slots)]
    return _accumulate(changes)


def sampled(series: Sequence[StepFunction], start: float, end: float, most: int) -> list[float]:
    """The instants of all changes between two; evenly spaced ones if there are too many."""
    found = {start, *(at for steps in series for at, _ in steps if start < at < end)}
    if end <= start:
        return []
    if len(found) <= most:
        return sorted(found)
    return [start + (end - start) * place / most for place in range(most)]


def integral(steps: StepFunction, start: float, end: float) -> float:
    """The integral of a step function, which is 0 before its first step."""
    total = 0.0
    for place, (at, level) in enumerate(steps):
        until = steps[place + 1][0] if place + 1 < len(steps) else end
        total += level * max(0.0, min(until, end) - max(at, start))
    return total


def integrals_until(steps: StepFunction, instants: Sequence[float]) -> list[float]:
    """The integral of a step function from the first of rising instants to each of them."""
    found: list[float] = []
    total, place, now = 0.0, 0, instants[0] if instants else 0.0
    height = 0.0
    for instant in instants:
        while place < len(steps) and steps[place][0] <= instant:
            at, level_ = steps[place]
            if at > now:
                total += height * (at - now)
                now = at
            height = level_
            place += 1
        total += height * (instant - now)
        now = instant
        found.append(total)
    return found


def value_at(steps: StepFunction, at: float) -> float:
    """The value of a step function at an instant."""
    return next((value for since, value in reversed(steps) if since <= at), 0.0)


def available_slots(history: History) -> StepFunction:
    """The number of slots that the study could use: lent, offered by a live worker, paid for.

    A worker that died silently counts until its last event.
    """
    ids = {(slot.host, slot.device): slot.id for slot in history.slots}
    lent: dict[int, int] = {}
    offered: dict[str, set[int]] = {}
    paid, priced = 0, history.budget is not None
    live = {worker.id for worker in history.workers}
    seen = _last_seen(history)
    steps: StepFunction = []
    for event in _merged(history, {w: at for w, at in seen.items() if w not in live}):
        if event.kind == "register":
            for slot in _numbers(event.detail.get("lent")):
                lent[slot] = event.study_id or 0
            if event.study_id == history.study_id and event.worker is not None:
                names = [(event.detail.get("host"), name) for name in _list(event, "devices")]
                offered[event.worker] = {ids[key] for key in names if key in ids}
        elif event.kind == "lend" and event.slot is not None:
            lent[event.slot] = event.study_id or 0
        elif event.kind in ("leave", "gone"):
            offered.pop(event.worker or "", None)
        elif event.kind == "pool" and event.study_id == history.study_id:
            paid = int(str(event.detail["slots"]))
        elif event.kind == "rest" and event.study_id == history.study_id:
            paid = 0
        mine = set().union(*offered.values()) if offered else set()
        usable = sum(lent.get(slot) == history.study_id for slot in mine)
        now = float(min(usable, paid) if priced else usable)
        if not steps or steps[-1][1] != now:
            if steps and steps[-1][0] == event.at:
                steps.pop()
            steps.append((event.at, now))
    return steps


def _list(event: Event, name: str) -> list[object]:
    found = event.detail.get(name)
    return list(found) if isinstance(found, (list, tuple)) else []


def _numbers(found: object) -> list[int]:
    return [int(one) for one in found] if isinstance(found, (list, tuple)) else []


def _last_seen(history: History) -> dict[str, float]:
    seen: dict[str, float] = {}
    for event in (*history.pool_events, *history.events):
        if event.worker is not None:
            seen[event.worker] = max(seen.get(event.worker, -math.inf), event.at)
    return seen


def _merged(history: History, gone: dict[str, float]) -> Iterator[Event]:
    paid = [event for event in history.events if event.kind in ("pool", "rest")]
    ends = [
        Event(1 << 62, at, "gone", None, None, None, None, worker, {})
        for worker, at in gone.items()
    ]
    happened = in_order([*history.pool_events, *paid])
    yield from sorted([*happened, *ends], key=lambda event: (event.at, event.id))


def spent(history: History, points: int = 120) -> StepFunction:
    """The cost at evenly spaced instants and at each change; empty if slots are free."""
    if history.budget is None:
        return []
    tariff = tariff_of(history.budget, history.started)
    begin, end = history.started, history.end
    grid = deque(begin + (end - begin) * i / points for i in range(points + 1))
    steps: StepFunction = []
    for until, bill in invoices(history.money_events, tariff, history.now):
        while grid and grid[0] <= min(until, end):
            at = grid.popleft()
            steps.append((at, bill.spent(at)))
        if until <= end:
            steps.append((until, bill.spent(until)))
    return steps


@dataclass(frozen=True)
class Costs:
    """Slot-time and money.

    Attributes:
        slot_hours: Slot-hours held by trials.
        spent: Money; None if slots are free.
        slot_hours_then: At the study's end, if as many slots stay in use as now.
        spent_then: At the study's end, if as many slots stay paid for as now.
        end: That end: the deadline, or when the money is used up.
    """

    slot_hours: float
    spent: float | None
    slot_hours_then: float
    spent_then: float | None
    end: float


def costs(history: History) -> Costs:
    """What was used and paid for; the end is the deadline, or that of the money."""
    used = slots_in_use(history.slot_intervals)
    held = integral(used, history.started, history.end)
    end = max(history.end, _end(history)) if history.settled is None else history.end
    ahead = value_at(used, history.end) * (end - history.end)
    spent = spent_then = None
    if history.budget is not None:
        tariff = tariff_of(history.budget, history.started)
        bill = invoice_of(history.money_events, tariff, history.now)
        spent, spent_then = bill.spent(history.end), bill.spent(end)
    return Costs(held / 3600, spent, (held + ahead) / 3600, spent_then, end)


def _end(history: History) -> float:
    """The deadline, or when the money is used up, by the planner's last event."""
    pool_events = [event for event in history.events if event.kind in ("pool", "rest")]
    if history.budget is None or not pool_events or pool_events[-1].kind == "rest":
        return history.deadline
    return min(history.deadline, float(str(pool_events[-1].detail["until"])))


@dataclass(frozen=True)
class Measured:
    """Measurements from the segments of a study.

    Attributes:
        speedup: S(k).
        seconds: Of a step on one slot, by trial.
        overhead: Of a start and a stop.
        changes: The changes of pace that a trial still comes to, as others did, by trial.
        schedule: Those that a new trial comes to.
    """

    speedup: Speedup
    seconds: Mapping[int, float]
    overhead: Overhead
    changes: Mapping[int, Sequence[PaceChange]] = field(default_factory=dict)
    schedule: Sequence[PaceChange] = ()


def measure(
    segments: Sequence[SegmentRow], reports: Iterable[ReportRow] = (), slots: Iterable[Slot] = ()
) -> Measured:
    """The present measurements, with priors for what was not measured yet on such slots."""
    paces = [
        SegmentPace(
            row.number,
            row.slots,
            row.position_to - row.position_from,
            row.trained,
            row.workers > 1,
        )
        for row in segments
        if row.position_from is not None and row.position_to is not None and row.trained
    ]
    on_cpus = any(slot.device.startswith("cpu:") for slot in slots)
    learned = learn_throughputs(
        paces,
        ((row.number, row.step, row.trained, row.slots, row.regime) for row in reports),
        PRIOR_EXPONENT_OF_CPUS if on_cpus else PRIOR_EXPONENT,
    )
    startups = [row.startup for row in segments if row.startup is not None]
    stops = [row.stop for row in segments if row.stop is not None]
    return Measured(
        learned.speedup,
        learned.step_seconds,
        learn_overhead(startups, stops),
        {number: learned.changes_ahead(number) for number in learned.step_seconds},
        learned.schedule,
    )
