"""Gangs over several workers: which workers can share one, its parts, and when it pays. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from optuna_deadline.allocation.records import Worker
from optuna_deadline.forecasting.throughput import WORTHWHILE, Speedup


@dataclass(frozen=True)
class WorkerGroups:
    """Groups of workers that may share gangs; empty if none may."""

    groups: tuple[frozenset[str], ...] = ()

    def largest(self, capacities: Mapping[str, int]) -> int:
        """The largest possible gang in slots, on one worker or on several."""
        alone = max(capacities.values(), default=0)
        for group in self.groups:
            # At least two parts of one size, on as many workers as have enough free slots.
            rooms = sorted((capacities.get(worker, 0) for worker in group), reverse=True)
            spread = (hosts * part for hosts, part in enumerate(rooms, start=1) if hosts > 1)
            alone = max([alone, *spread])
        return alone

    def spread(
        self, size: int, free: Mapping[str, int], allowed: Collection[str] | None = None
    ) -> tuple[tuple[str, int], ...]:
        """Split a gang into the fewest equal parts: slots by worker, empty if it does not fit.

        All parts have one size, because launchers and trainers expect as many ranks on each host
        of a training.
        """
        best: tuple[tuple[str, int], ...] = ()
        for group in self.groups:
            names = [name for name in group if allowed is None or name in allowed]
            for hosts in range(2, min(size, len(names)) + 1):
                if size % hosts or (best and len(best) <= hosts):
                    continue
                part = size // hosts
                fit = [name for name in names if free.get(name, 0) >= part]
                if len(fit) < hosts:
                    continue
                fit.sort(key=lambda name: (free[name], name))  # larger gaps stay whole
                best = tuple((name, part) for name in fit[:hosts])
        return best


#: Of hosts that each keep gangs to themselves.
NO_GROUPS = WorkerGroups()


@dataclass(frozen=True)
class SpreadTradeoff:
    """Decides when to spread a gang over workers, and when to bring it back to one worker.

    Attributes:
        speedup: S(k), of gangs on one worker and of those that cross.
        left: Seconds until the deadline.
        overhead: Seconds that a move costs.
    """

    speedup: Speedup = field(default_factory=Speedup)
    left: float = 0.0
    overhead: float = 0.0

    def spreading_pays(self, size: int, room: int) -> bool:
        """Whether a gang over several workers is faster than the largest one on one worker."""
        alone = self.speedup.packed(room) if room else 0.0
        return self.speedup.across(size) >= WORTHWHILE * max(alone, 1e-9)

    def gathering_pays(self, size: int) -> bool:
        """Whether to move a spread gang to one worker that now has enough free slots."""
        before = self.speedup.across(size) * self.left
        return self.speedup.packed(size) * (self.left - self.overhead) > WORTHWHILE * before


def groups_of(
    workers: Iterable[Worker], apart: Collection[frozenset[str]] = frozenset()
) -> WorkerGroups:
    """Group workers that may share gangs: those with an address and the same checkpoint store.

    Args:
        workers: Live workers.
        apart: Pairs of workers that must not share a gang.
    """
    places: dict[str, set[str]] = defaultdict(set)
    for worker in workers:
        if worker.address is not None and worker.store is not None and worker.drained is None:
            places[worker.store].add(worker.id)
    groups = [frozenset(names) for names in places.values()]
    for pair in sorted(apart, key=sorted):
        groups = _without(groups, pair)
    return WorkerGroups(tuple(names for names in groups if len(names) > 1))


def _without(groups: list[frozenset[str]], pair: frozenset[str]) -> list[frozenset[str]]:
    """Split a group into the largest groups without any of the pairs."""
    whole = [names for names in groups if not pair <= names]
    halves = [names - {one} for names in groups if pair <= names for one in sorted(pair)]
    kept = [names for names in halves if not any(names <= other for other in whole)]
    return whole + list(dict.fromkeys(kept))
