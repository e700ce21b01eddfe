"""Reads new rows of a table that only grows, each once, including those that appear late.

PostgreSQL numbers rows before it commits them, so a lower id may appear after a higher one. The
number of ids in between says nothing, because ids are shared by all studies of a database, up to
a thousand per second. Time is one, since transactions are bounded. So the rows of
the last seconds are read again, and returned once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

#: The longest time from a row's timestamp to its commit.
LATE_SECONDS = 10.0

#: The longest time from a row's timestamp to its number, and then to the commit of a lower id
#: by a transaction that began just before.
_SETTLED_SECONDS = 2 * LATE_SECONDS

#: The most rows of a query with a limit.
PAGE = 10_000


class Numbered(Protocol):
    """A row with its id and the start of its transaction."""

    @property
    def id(self) -> int:
        """Rises with each row."""

    @property
    def at(self) -> float:
        """In the database's seconds."""


RowT = TypeVar("RowT", bound=Numbered)


class Tail(Generic[RowT]):
    """Reads a growing table on from the last position.

    Args:
        query: The rows above an id, by id: all of them or the first :data:`PAGE`.
        start: The id after which to read.

    Attributes:
        solid: Up to this id no row can appear any more; the next read starts here.
    """

    def __init__(self, query: Callable[[int], list[RowT]], start: int = 0) -> None:
        self.solid = start
        self._query = query
        self._seen: dict[int, float] = {}  # ids above the solid ones, with their times

    def read(self, now: float) -> list[RowT]:
        """The new rows, by id.

        A late one may have a lower id than an earlier result.

        Args:
            now: The database's time, read before.
        """
        return [row for page in self.pages(now) for row in page]

    def pages(self, now: float) -> Iterator[list[RowT]]:
        """The new rows, page by page."""
        after = self.solid
        while True:
            page, new = self._query(after), []
            for row in page:
                row_id = row.id
                if row_id in self._seen:
                    continue
                new.append(row)
                if row_id == self.solid + 1:
                    self.solid = row_id
                else:
                    self._seen[row_id] = row.at
            last = len(page) < PAGE
            if self._seen:
                self._settle(now, math.inf if last else page[-1].id)
            yield new
            if last:
                return
            after = page[-1].id

    def _settle(self, now: float, read: float) -> None:
        """Move the position forward, within the ids up to which rows were read."""
        seen = self._seen
        while self.solid + 1 in seen and self.solid < read:  # none is missing
            self.solid += 1
        then = now - _SETTLED_SECONDS
        old = [row_id for row_id, at in seen.items() if at < then and row_id <= read]
        self.solid = max([self.solid, *old])
        self._seen = {row_id: at for row_id, at in seen.items() if row_id > self.solid}
