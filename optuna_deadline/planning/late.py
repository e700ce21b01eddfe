"""Rows that appear late: PostgreSQL numbers them before it commits them.

So a lower id may appear after a higher one. How many ids lie between is no measure of it: they are
numbered for all studies of a database together, a thousand a second where many train. Time is one,
since transactions are bounded.
"""

from __future__ import annotations

from collections.abc import Iterable

from optuna_deadline.allocation.tail import LATE_SECONDS


def solid(rows: Iterable[tuple[int, float]], now: float, before: int = 0) -> int:
    """The id up to which no row can appear any more.

    Args:
        rows: Ids that were seen, with their times.
        now: The database's time before they were read.
        before: The same as it was known before.
    """
    return max([before, *[row_id for row_id, at in rows if at < now - LATE_SECONDS]])
