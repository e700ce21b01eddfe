"""From "how many slots" to "on which worker": pure, stable, all of a gang on one worker."""

from __future__ import annotations

from collections.abc import Mapping

from optuna_deadline.allocation.records import Assignment, Desired
from optuna_deadline.planning.homes import Bound
from optuna_deadline.policies.plan import Order, Pause, Retire, Run


def place(
    orders: Mapping[int, Order],
    capacities: Mapping[str, int],
    current: Mapping[int, Desired],
    bounds: Mapping[int, Bound] | None = None,
) -> list[Assignment]:
    """Give every order its worker.

    A trial stays where it is when it fits there, and one that is parked goes back there while
    there is room; others go where they fit tightest. Where no worker has room for the whole gang
    it gets as many slots as fit, and pauses where none do.
    Gangs whose size a person has pinned are placed before all others, and whole or not at all;
    then those that cannot go on everywhere, since others can go elsewhere.

    Args:
        orders: The plan, the most deserving first.
        capacities: Slots by live worker.
        current: The trials as the table has them.
        bounds: Of trials that can go on with some workers only.
    """
    bounds = bounds or {}
    free = dict(capacities)
    lines: dict[int, Assignment] = {}
    pinned: list[tuple[int, Run]] = []
    bound: list[tuple[int, Run]] = []
    others: list[tuple[int, Run]] = []
    for number, order in orders.items():
        if isinstance(order, Pause):
            lines[number] = Assignment(number, "pause", None, 0, order.reason)
        elif isinstance(order, Retire):
            lines[number] = Assignment(number, "stop", None, 0, order.reason)
        else:
            line = current.get(number)
            whole = line is not None and line.pinned is not None
            (pinned if whole else bound if number in bounds else others).append((number, order))
    for runs in (pinned, bound, others):
        movers = []
        for number, order in runs:
            line = current.get(number)
            home = line.worker if line is not None and line.mode == "run" else None
            there = number not in bounds or home in bounds[number].workers
            if home is not None and there and free.get(home, 0) >= order.slots:
                free[home] -= order.slots
                lines[number] = Assignment(number, "run", home, order.slots, order.reason)
            else:
                movers.append((number, order))
        for number, order in movers:
            line = current.get(number)
            parked = line.worker if line is not None and line.mode == "pause" else None
            lines[number] = _move(
                number, order, free, bounds.get(number), parked, whole=runs is pinned
            )
    return [lines[number] for number in orders]


def _move(
    number: int,
    order: Run,
    free: dict[str, int],
    bound: Bound | None,
    parked: str | None,
    *,
    whole: bool,
) -> Assignment:
    fit = {w: n for w, n in free.items() if bound is None or w in bound.workers}
    room = max(fit.values(), default=0)
    if room == 0 or (whole and room < order.slots):
        words = (
            f"waits: no worker has {order.slots} free" if whole else "waits: no worker has room"
        )
        if bound is not None and max(free.values(), default=0) > room:
            words = bound.words
        return Assignment(number, "pause", parked, 0, words)
    size = min(order.slots, room)
    # The tightest fit leaves the larger gaps for gangs.
    fitting = [w for w in fit if fit[w] >= size]
    worker = parked if parked in fitting else min(fitting, key=lambda w: (fit[w], w))
    free[worker] -= size
    return Assignment(number, "run", worker, size, order.reason)


def changed(lines: list[Assignment], current: Mapping[int, Desired]) -> list[Assignment]:
    """Only what differs from the table: a new reason alone is no change."""
    return [
        line
        for line in lines
        if (before := current.get(line.number)) is None
        or (before.mode, before.worker, before.slots) != (line.mode, line.worker, line.slots)
    ]
