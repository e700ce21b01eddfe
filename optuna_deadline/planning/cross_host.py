"""Which workers can share a gang, how one is spread over them, and when that is worth it: pure."""

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
        """The most slots that a gang can have, on one worker or on several."""
        alone = max(capacities.values(), default=0)
        for group in self.groups:
            # As many parts of one size as workers have room for one, and at least two.
            rooms = sorted((capacities.get(worker, 0) for worker in group), reverse=True)
            spread = (hosts * part for hosts, part in enumerate(rooms, start=1) if hosts > 1)
            alone = max([alone, *spread])
        return alone

    def spread(
        self, size: int, free: Mapping[str, int], allowed: Collection[str] | None = None
    ) -> tuple[tuple[str, int], ...]:
        """A gang's parts by worker, as few as can be; empty where it fits nowhere so.

        All parts are of one size, since launchers and trainers take it for granted that all hosts
        of a training have as many ranks.
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
    """When it pays to be spread, and to be brought together again.

    Attributes:
        speedup: S(k), of gangs on one worker and of those that cross.
        left: Seconds until the deadline.
        overhead: Seconds that a move costs.
    """

    speedup: Speedup = field(default_factory=Speedup)
    left: float = 0.0
    overhead: float = 0.0

    def spreading_pays(self, size: int, room: int) -> bool:
        """Whether a gang over several workers is better than what fits on one of them."""
        alone = self.speedup.packed(room) if room else 0.0
        return self.speedup.across(size) >= WORTHWHILE * max(alone, 1e-9)

    def gathering_pays(self, size: int) -> bool:
        """Whether a spread gang that one worker has room for by now is better moved there."""
        before = self.speedup.across(size) * self.left
        return self.speedup.packed(size) * (self.left - self.overhead) > WORTHWHILE * before


def groups_of(
    workers: Iterable[Worker], apart: Collection[frozenset[str]] = frozenset()
) -> WorkerGroups:
    """The workers that may share gangs: those with an address and the same checkpoint store.

    Args:
        workers: Live ones.
        apart: Pairs of workers that are not to be in one gang.
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
    """The largest groups that do not hold both of a pair."""
    whole = [names for names in groups if not pair <= names]
    halves = [names - {one} for names in groups if pair <= names for one in sorted(pair)]
    kept = [names for names in halves if not any(names <= other for other in whole)]
    return whole + list(dict.fromkeys(kept))
