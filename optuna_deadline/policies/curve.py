"""A trial's reports, as values that share the rows that they have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, overload

#: Below every score; the score of NaN.
WORST = -math.inf


class Report(NamedTuple):
    """One report: its score and the training time before it."""

    step: int
    score: float  #: larger is better in both directions; NaN became ``-inf``
    trained: float  #: seconds of training over all segments so far


_NOTHING = Report(0, WORST, 0.0)


class ReportCurve(Sequence[Report]):
    """Reports by step, which never change.

    A curve and the one that follows it share one list, so a curve of n reports takes n steps to
    build, and not n squared.

    Args:
        reports: The reports by step.

    Attributes:
        last: The last report; without one, a report of the worst score at step 0.
        best_score: The best score, the worst one without a report.
    """

    __slots__ = ("_shared", "_size", "best_score", "last")

    def __init__(self, reports: Iterable[Report] = ()) -> None:
        self._shared = list(reports)
        self._size = len(self._shared)
        self.last = self._shared[-1] if self._shared else _NOTHING
        self.best_score = max([report.score for report in self._shared], default=WORST)

    def followed_by(self, report: Report) -> ReportCurve:
        """The curve with one report more."""
        new = ReportCurve.__new__(ReportCurve)
        # Else another curve has gone on from this one.
        is_newest = len(self._shared) == self._size
        new._shared = self._shared if is_newest else self._shared[: self._size]
        new._shared.append(report)
        new._size, new.last = self._size + 1, report
        new.best_score = max(self.best_score, report.score)
        return new

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Report: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Report, ...]: ...

    def __getitem__(self, index: int | slice) -> Report | tuple[Report, ...]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._size)
            if step > 0:
                return tuple(self._shared[start:stop:step])
            return tuple([self._shared[place] for place in range(start, stop, step)])
        place = index + self._size if index < 0 else index
        if not 0 <= place < self._size:
            raise IndexError("The curve has no such report.")
        return self._shared[place]

    def __iter__(self) -> Iterator[Report]:
        return islice(self._shared, self._size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and extends(self, other)

    def __hash__(self) -> int:
        return hash((self._size, *self[-1:]))

    def __repr__(self) -> str:
        return f"ReportCurve({list(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ReportCurve, (tuple(self),)


#: Of a trial before its first report.
NO_REPORTS = ReportCurve()


def extends(new: Sequence[Report], old: Sequence[Report]) -> bool:
    """Whether reports begin with others; at once for curves that share their list."""
    if len(new) < len(old):
        return False
    if (
        isinstance(new, ReportCurve)
        and isinstance(old, ReportCurve)
        and new._shared is old._shared
    ):
        return True
    return tuple(new[: len(old)]) == tuple(old)
