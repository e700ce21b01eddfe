"""From "how many slots" to "on which worker": pure, stable, and on one worker where possible."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from optuna_deadline.allocation.records import Assignment, OtherWorkers, PlannedTrial
from optuna_deadline.planning.cross_host import NO_GROUPS, SpreadTradeoff, WorkerGroups
from optuna_deadline.planning.placement.data_locality import HostBinding
from optuna_deadline.planning.reading import Reading
from optuna_deadline.policies.api import Order, Pause, Retire, Run
from optuna_deadline.policies.wrappers import divisor_reason, largest_divisor


class FreeSlots(Mapping[str, int]):
    """The free slots by worker; the tightest fit is found fast for any number of workers.

    Args:
        free: Free slots at the start.
    """

    def __init__(self, free: Mapping[str, int]) -> None:
        self._free = dict(free)
        self._sorted = sorted((slots, worker) for worker, slots in free.items())

    def __getitem__(self, worker: str) -> int:
        return self._free[worker]

    def __iter__(self) -> Iterator[str]:
        return iter(self._free)

    def __len__(self) -> int:
        return len(self._free)

    def take(self, worker: str, slots: int) -> None:
        """Take slots of a worker, or return them if the number is negative."""
        before = self._free[worker]
        del self._sorted[bisect_left(self._sorted, (before, worker))]
        self._free[worker] = before - slots
        insort(self._sorted, (before - slots, worker))

    def largest(self, among: Collection[str] | None = None) -> int:
        """The most free slots of one worker, of all workers or of some."""
        if among is not None:
            return max([self._free[name] for name in among if name in self._free], default=0)
        return self._sorted[-1][0] if self._sorted else 0

    def tightest(self, slots: int, among: Collection[str] | None = None) -> str | None:
        """The worker with the fewest free slots that are enough; None if no worker has as many."""
        if among is not None:
            fitting = [name for name in among if self._free.get(name, -1) >= slots]
            return min(fitting, key=lambda name: (self._free[name], name), default=None)
        place = bisect_left(self._sorted, (slots, ""))
        return self._sorted[place][1] if place < len(self._sorted) else None


@dataclass(frozen=True)
class SpreadRules:
    """The workers between which gangs may be spread, and when that pays."""

    groups: WorkerGroups = NO_GROUPS
    tradeoff: SpreadTradeoff = field(default_factory=SpreadTradeoff)


def spread_rules(reading: Reading) -> SpreadRules:
    """The spread rules of a reading."""
    seen = reading.snapshot
    return SpreadRules(
        reading.worker_groups, SpreadTradeoff(seen.speedup, seen.time_left, seen.overhead.total)
    )


def assign_workers(
    orders: Mapping[int, Order],
    capacities: Mapping[str, int],
    current: Mapping[int, PlannedTrial],
    bindings: Mapping[int, HostBinding] | None = None,
    spread: SpreadRules | None = None,
) -> list[Assignment]:
    """Assign each order to workers.

    A trial stays where it is if it fits there. A warm trial returns to its worker while that has
    enough free slots. Other trials go where they fit tightest. If no worker can hold a gang, it is
    spread over several if these may share one and that pays; otherwise it gets as many slots as
    fit, and pauses if none do. A spread gang moves to one worker once that has enough free slots
    and the move pays. Gangs with a size pinned by a user are placed first, whole or not at all.
    Then come trials that cannot resume everywhere, since others can go elsewhere.

    Args:
        orders: The plan, highest priority first.
        capacities: Slots by live worker.
        current: The trials as the table has them.
        bindings: Trials that only some workers can resume.
        spread: Where gangs may be spread; nowhere by default.
    """
    bindings, spread = bindings or {}, spread or SpreadRules()
    free = FreeSlots(capacities)
    assignments: dict[int, Assignment] = {}
    pinned: list[tuple[int, Run]] = []
    bound: list[tuple[int, Run]] = []
    others: list[tuple[int, Run]] = []
    for number, order in orders.items():
        if isinstance(order, Pause):
            assignments[number] = Assignment(number, "pause", None, 0, order.reason)
        elif isinstance(order, Retire):
            assignments[number] = Assignment(number, "stop", None, 0, order.reason)
        else:
            row = current.get(number)
            whole = row is not None and row.pinned is not None
            (pinned if whole else bound if number in bindings else others).append((number, order))
    for runs in (pinned, bound, others):
        movers = []
        for number, order in runs:
            stays = _keep_workers(
                order, current.get(number), free, bindings.get(number), spread.groups
            )
            if stays:
                assignments[number] = _take(number, order, stays, free)
            else:
                movers.append((number, order))
        for number, order in movers:
            row = current.get(number)
            warm = row.worker if row is not None and row.mode == "pause" else None
            assignments[number] = _assign_new_worker(
                number, order, free, bindings.get(number), warm, spread, whole=runs is pinned
            )
    for number, placed in list(assignments.items()):
        if placed.others:
            assignments[number] = _bring_together(
                placed, free, bindings.get(number), spread.tradeoff
            )
    return [assignments[number] for number in orders]


def _keep_workers(
    order: Run,
    row: PlannedTrial | None,
    free: Mapping[str, int],
    bound: HostBinding | None,
    crossing: WorkerGroups,
) -> OtherWorkers:
    """The workers of a trial, its first worker first, if it can stay there."""
    if row is None or row.mode != "run" or row.worker is None:
        return ()
    if row.others:
        if row.slots != order.slots:
            return ()
        own = row.slots - sum(slots for _, slots in row.others)
        there: OtherWorkers = ((row.worker, own), *row.others)
        names = {name for name, _ in there}
        if not any(names <= group for group in crossing.groups):
            return ()
    else:
        there = ((row.worker, order.slots),)
    fits = all(free.get(name, 0) >= slots for name, slots in there)
    reached = bound is None or all(name in bound.workers for name, _ in there)
    return there if fits and reached else ()


def _take(number: int, order: Run, parts: OtherWorkers, free: FreeSlots) -> Assignment:
    for name, slots in parts:
        free.take(name, slots)
    size = sum(slots for _, slots in parts)
    return Assignment(number, "run", parts[0][0], size, order.reason, tuple(parts[1:]))


def _assign_new_worker(
    number: int,
    order: Run,
    free: FreeSlots,
    bound: HostBinding | None,
    warm: str | None,
    spread: SpreadRules,
    *,
    whole: bool,
) -> Assignment:
    among = None if bound is None else bound.workers
    room = free.largest(among)
    if room < order.slots and spread.groups.groups:
        fit = {name: n for name, n in free.items() if among is None or name in among}
        parts = _spread(order.slots, room, fit, spread, whole=whole)
        if parts:
            return _take(number, order, parts, free)
    if room == 0 or (whole and room < order.slots):
        words = (
            f"waits: no worker has {order.slots} free" if whole else "waits: no worker has room"
        )
        if bound is not None and free.largest() > room:
            words = bound.reason
        return Assignment(number, "pause", warm, 0, words)
    size = min(order.slots, room)
    # The tightest fit leaves the larger gaps for gangs.
    at_home = warm is not None and (among is None or warm in among)
    worker = warm if at_home and free.get(warm or "", 0) >= size else None
    worker = worker or free.tightest(size, among)
    assert worker is not None
    return _take(number, order, ((worker, size),), free)


def _spread(
    size: int, room: int, fit: Mapping[str, int], spread: SpreadRules, *, whole: bool
) -> OtherWorkers:
    """The parts of a gang over several workers, the largest that is possible and pays."""
    for slots in range(size, size - 1 if whole else room, -1):
        parts = spread.groups.spread(slots, fit)
        if parts and (whole or spread.tradeoff.spreading_pays(slots, room)):
            return parts
    return ()


def _bring_together(
    row: Assignment, free: FreeSlots, bound: HostBinding | None, worth: SpreadTradeoff
) -> Assignment:
    """Move a spread gang to one worker if that has enough free slots and the move pays."""
    parts = ((row.worker or "", row.slots - sum(n for _, n in row.others)), *row.others)
    for name, slots in parts:
        free.take(name, -slots)
    worker = free.tightest(row.slots, None if bound is None else bound.workers)
    if worker is None or not worth.gathering_pays(row.slots):
        for name, slots in parts:
            free.take(name, slots)
        return row
    free.take(worker, row.slots)
    return row._replace(worker=worker, others=())


def changed_assignments(
    assignments: list[Assignment], current: Mapping[int, PlannedTrial]
) -> list[Assignment]:
    """The lines that differ from the table; a new reason alone is no change."""
    return [
        row
        for row in assignments
        if (before := current.get(row.number)) is None
        or (before.mode, before.worker, before.slots, before.others)
        != (row.mode, row.worker, row.slots, row.others)
    ]


def fit_to_batches(
    assignments: Sequence[Assignment], current: Mapping[int, PlannedTrial]
) -> list[Assignment]:
    """Reduce the gangs to sizes that divide their batch, except sizes pinned by a user.

    Args:
        lines: The placement.
        current: The trials as the table has them.
    """
    return [_fit_to_batch(row, current.get(row.number)) for row in assignments]


def _fit_to_batch(row: Assignment, known: PlannedTrial | None) -> Assignment:
    if row.mode != "run" or known is None or known.batch is None or known.pinned is not None:
        return row
    size = largest_divisor(row.slots, known.batch)
    if size == row.slots:
        return row
    hosts = 1 + len(row.others)  # sizes with the same number of slots on each worker
    while hosts > 1 and size % hosts:
        size = largest_divisor(size - 1, known.batch) if size > hosts else 1
        hosts = hosts if size >= hosts else 1
    if hosts == 1:
        size = largest_divisor(row.slots - sum(slots for _, slots in row.others), known.batch)
    others = tuple((name, size // hosts) for name, _ in row.others) if hosts > 1 else ()
    reason = f"{row.reason}; {divisor_reason(row.slots, known.batch)}"
    return row._replace(slots=size, others=others, reason=reason)
