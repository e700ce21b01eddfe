"""Which workers' ranks find each other, learned from the gangs that crossed them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

from optuna_deadline.allocation.records import Desired, SegmentRow, Worker
from optuna_deadline.planning.cross_host import APART, Crossing, groups_of

#: After so many gangs in a row whose ranks did not meet, none is tried for so many seconds.
_UNMET, _REST = 2, 600.0

Key = tuple[int, int]  #: number and fence


class Encounters:
    """Remembers who was in which gang, and whether its ranks met."""

    def __init__(self) -> None:
        self._teams: dict[Key, frozenset[str]] = {}
        self._ended: dict[Key, SegmentRow] = {}

    def see(self, lines: Iterable[Desired]) -> None:
        """Take the trials as they stand: a gang's workers are known only while it trains."""
        for line in lines:
            if line.owner is not None and line.others:
                team = frozenset((line.owner, *(name for name, _ in line.others)))
                self._teams.setdefault((line.number, line.fence), team)  # before a plan moves it

    def take(self, row: SegmentRow) -> None:
        """Take a segment, again when it has ended."""
        if row.workers > 1 and row.ended is not None:
            self._ended[row.number, row.fence] = row

    def crossing(self, workers: Iterable[Worker], now: float) -> Crossing:
        """The workers that may share gangs now.

        Two that were in two gangs in a row whose ranks did not meet are kept apart for ten
        minutes; where nobody saw whose gangs these were, all are.

        Args:
            workers: Live ones.
            now: The time.
        """
        if not any(_unmet_lately(row, now) for row in self._ended.values()):
            return groups_of(workers)
        latest = sorted(self._ended.values(), key=_when, reverse=True)
        if _failed(latest, now) and any(self._team(row) is None for row in latest[:_UNMET]):
            return APART
        suspects = {pair for row in latest if _unmet_lately(row, now) for pair in self._pairs(row)}
        apart = {
            pair
            for pair in suspects
            if _failed([row for row in latest if pair <= (self._team(row) or frozenset())], now)
        }
        return groups_of(workers, apart)

    def _team(self, row: SegmentRow) -> frozenset[str] | None:
        return self._teams.get((row.number, row.fence))

    def _pairs(self, row: SegmentRow) -> Iterator[frozenset[str]]:
        return map(frozenset, combinations(sorted(self._team(row) or ()), 2))


def _failed(newest_first: list[SegmentRow], now: float) -> bool:
    last = newest_first[:_UNMET]
    return (
        len(last) == _UNMET
        and all(row.outcome == "unmet" for row in last)
        and _unmet_lately(last[0], now)
    )


def _unmet_lately(row: SegmentRow, now: float) -> bool:
    return row.outcome == "unmet" and now < _when(row) + _REST


def _when(row: SegmentRow) -> float:
    return row.ended or 0.0
