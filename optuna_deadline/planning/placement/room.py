"""Free slots by worker, and which worker fits tightest: found at once, however many there are."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping


class Room(Mapping[str, int]):
    """The slots that are free, by worker.

    Args:
        free: At the beginning.
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
        """Slots of a worker are taken, or given back where there are fewer than none."""
        before = self._free[worker]
        del self._sorted[bisect_left(self._sorted, (before, worker))]
        self._free[worker] = before - slots
        insort(self._sorted, (before - slots, worker))

    def largest(self, among: Collection[str] | None = None) -> int:
        """The most that one worker has free, of all or of some."""
        if among is not None:
            return max([self._free[name] for name in among if name in self._free], default=0)
        return self._sorted[-1][0] if self._sorted else 0

    def tightest(self, slots: int, among: Collection[str] | None = None) -> str | None:
        """The worker with the fewest free slots that are enough; None where nobody has as many."""
        if among is not None:
            fitting = [name for name in among if self._free.get(name, -1) >= slots]
            return min(fitting, key=lambda name: (self._free[name], name), default=None)
        place = bisect_left(self._sorted, (slots, ""))
        return self._sorted[place][1] if place < len(self._sorted) else None
