"""Fenced writes of a running segment: reports, checkpoints, progress, limits.

Each first locks the trial's row under (owner, fence). A worker that lost its lease finds no row to
lock and changes nothing. Frequent writes are one statement on PostgreSQL, as a renewal is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count
from typing import Any

from optuna_deadline.allocation.database.text import listed
from optuna_deadline.allocation.database.transaction import Transaction
from optuna_deadline.allocation.records import Grant, NewReport
from optuna_deadline.allocation.rules import kept_ids, none_if_nan
from optuna_deadline.allocation.table.base import IS_ALIVE, OF_SEGMENT, OF_TRIAL, OWNED
from optuna_deadline.allocation.table.leases import lease_lost
from optuna_deadline.allocation.table.reaping import Reaping
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.checkpoints.storage import Location, parse_location

KEPT_CHECKPOINTS = 2  #: newest checkpoints of a trial that stay, beside the best


class Segments(Reaping):
    """What a running segment writes."""

    def add_reports(self, worker_id: str, grant: Grant, new: Sequence[NewReport]) -> None:
        """Record reports in their order; a step keeps its first value.

        Raises:
            LeaseLost: The worker does not own the trial under the grant's fence.
        """
        alone = self.database.postgresql or len(new) == 1
        with self._alone("add_reports") if alone else self._tx("add_reports") as tx:
            self._add_reports(tx, worker_id, grant, new)

    def _add_reports(
        self, tx: Transaction, me: str, grant: Grant, new: Sequence[NewReport]
    ) -> None:
        mine = {"me": me, "number": grant.number, "fence": grant.fence}
        if tx.postgresql:
            rows = [(step, _number(value), *rest) for step, value, *rest in new]
            if not tx.value(_ADD_REPORTS, **mine, size=grant.size, rows=listed(rows)):
                raise lease_lost(grant)
            return
        added = [
            tx.run(_ADD_REPORT, **mine, size=grant.size, **report._asdict()) for report in new
        ]
        if not added or not all(added):  # the step is known, or the trial is not ours
            self._guard(tx, me, grant)

    def add_checkpoint(
        self, worker_id: str, grant: Grant, *new: Checkpoint, reports: Sequence[NewReport] = ()
    ) -> list[Location]:
        """Commit checkpoints, the newest last; committing a file again changes nothing.

        The newest ones stay, and those with the best value in each direction. Several at once have
        the same effect as one after the other; those that would not stay get no row. Their reports
        are recorded in the same transaction.

        Returns:
            The files that no row names any more.

        Raises:
            LeaseLost: The worker does not own the trial under the grant's fence.
        """
        with self._tx("add_checkpoint") as tx:
            self._add_reports(tx, worker_id, grant, reports)
            named = {str(one.path): one for one in new}
            rows = tx.rows(
                f"SELECT id, value, path FROM @checkpoint WHERE {OF_TRIAL} ORDER BY id DESC",
                number=grant.number,
            )
            there = [row for row in rows if row[2] not in named]
            coming = dict(zip(count(-1, -1), named.values(), strict=False))  # no ids yet
            newest = [(place, none_if_nan(one.value)) for place, one in reversed(coming.items())]
            kept = kept_ids([*newest, *[row[:2] for row in there]], KEPT_CHECKPOINTS)
            gone = [row[0] for row in rows if row[2] in named or row[0] not in kept]
            if gone:
                tx.run("DELETE FROM @checkpoint WHERE id IN each(:ids)", ids=listed(gone))
            for place, one in coming.items():
                if place in kept:
                    self._insert_checkpoint(tx, worker_id, grant, one)
            replaced = [one.path for place, one in coming.items() if place not in kept]
            return [*[parse_location(row[2]) for row in there if row[0] not in kept], *replaced]

    @staticmethod
    def _insert_checkpoint(tx: Transaction, me: str, grant: Grant, new: Checkpoint) -> None:
        tx.run(
            "INSERT INTO @checkpoint (study_id, number, fence, step, value, path, size, checksum, "
            "at) VALUES (:study, :number, :fence, :step, :value, :path, :size, :checksum, :now)",
            number=grant.number, fence=grant.fence, step=new.step, value=none_if_nan(new.value),
            path=str(new.path), size=new.size, checksum=new.checksum,
        )  # fmt: skip
        tx.event("checkpoint", number=grant.number, fence=grant.fence, worker=me, step=new.step)

    def drop_checkpoints(self, *paths: Location) -> list[Location]:
        """Delete checkpoints of ended trials; those of others stay.

        Returns:
            The files that no row names any more.
        """
        with self._tx("drop_checkpoints") as tx:
            gone = tx.rows(
                "DELETE FROM @checkpoint WHERE study_id = :study AND path IN names(:paths) AND "
                f"number IN (SELECT number FROM @trial WHERE study_id = :study AND NOT {IS_ALIVE})"
                " RETURNING id, path",
                paths=listed([str(path) for path in paths]),
            )
            return [parse_location(path) for _, path in sorted(gone)]

    def set_progress(
        self,
        worker_id: str,
        grant: Grant,
        *,
        startup: float | None,
        position_from: float | None,
        position_to: float | None,
        trained: float | None,
        validated: float | None = None,
        waited: float | None = None,
        horizon: int | None,
        batch: int | None = None,
        pausable: bool | None = None,
    ) -> None:
        """Record the progress and speed of a segment.

        None keeps the trial's known values: its horizon, the batch that its gang size must divide,
        and whether its objective can be paused.

        Raises:
            LeaseLost: The worker does not own the trial under the grant's fence.
        """
        given = {
            "me": worker_id, "number": grant.number, "fence": grant.fence, "startup": startup,
            "position_from": position_from, "position_to": position_to, "trained": trained,
            "validated": validated, "waited": waited, "horizon": horizon, "batch": batch,
            "pausable": pausable,
        }  # fmt: skip
        if self.database.postgresql:
            with self._alone() as tx:
                if not tx.value(_SET_PROGRESS, **given):
                    raise lease_lost(grant)
            return
        with self._tx() as tx:
            self._guard(tx, worker_id, grant)
            tx.run(f"{_PROGRESS_OF_SEGMENT} WHERE {OF_SEGMENT}", **given)
            if (horizon, batch, pausable) != (None, None, None):
                tx.run(f"{_PROGRESS_OF_TRIAL} WHERE {OF_TRIAL}", **given)

    def limit_slots(self, worker_id: str, grant: Grant, slots: int, reason: str) -> None:
        """Record the most slots on which the trial can train, and why, in one sentence.

        From now on it is granted no more; slots above the limit are released through the plan. A
        limit only falls: the same or a larger one changes nothing.

        Raises:
            LeaseLost: The worker does not own the trial under the grant's fence.
        """
        of: dict[str, Any] = {"number": grant.number, "fence": grant.fence}
        with self._tx() as tx:
            self._guard(tx, worker_id, grant)
            if tx.run(
                f"UPDATE @trial SET slot_limit = :slots, limit_reason = :reason WHERE {OF_TRIAL} "
                "AND (slot_limit IS NULL OR slot_limit > :slots)",
                slots=slots, reason=reason, **of,
            ):  # fmt: skip
                tx.event("limit", worker=worker_id, slots=slots, reason=reason, **of)
                self._wake_planner(tx)


def _number(value: float) -> float | str | None:
    """A number in JSON, which has neither infinity nor NaN; NaN is stored as NULL."""
    return value if math.isfinite(value) else none_if_nan(value) and str(value)


_OF_REPORT = "study_id, number, step, value, fence, slots, trained, regime, at"
_ADD_REPORT = (
    f"INSERT INTO @report ({_OF_REPORT}) SELECT :study, :number, :step, :value, :fence, :size, "
    f":trained, :regime, NOW FROM @trial WHERE {OWNED} ON CONFLICT DO NOTHING"
)
_MINE = f"WITH mine AS (SELECT number FROM @trial WHERE {OWNED} FOR UPDATE)"
_ADD_REPORTS = (
    f"{_MINE}, added AS (INSERT INTO @report ({_OF_REPORT}) SELECT :study, mine.number, "
    "CAST(value ->> 0 AS INTEGER), CAST(value ->> 1 AS DOUBLE PRECISION), :fence, :size, "
    "CAST(value ->> 2 AS DOUBLE PRECISION), value ->> 3, NOW FROM mine CROSS JOIN "
    "json_array_elements(CAST(:rows AS json)) WITH ORDINALITY AS new(value, place) "
    "WHERE NOT EXISTS (SELECT 1 FROM @report r WHERE r.study_id = :study AND "
    "r.number = mine.number AND r.step = CAST(new.value ->> 0 AS INTEGER)) "
    "ORDER BY place ON CONFLICT DO NOTHING) SELECT count(*) FROM mine"
)
_PROGRESS_OF_SEGMENT = (
    "UPDATE @segment SET startup = :startup, position_from = :position_from, "
    "position_to = :position_to, trained = :trained, validated = :validated, waited = :waited"
)
_PROGRESS_OF_TRIAL = (
    "UPDATE @trial SET horizon = coalesce(:horizon, horizon), batch = coalesce(:batch, batch), "
    "pausable = coalesce(:pausable, pausable)"
)
_SET_PROGRESS = (
    f"{_MINE}, told AS ({_PROGRESS_OF_SEGMENT} WHERE study_id = :study AND number IN "
    f"(SELECT number FROM mine) AND fence = :fence), changed AS ({_PROGRESS_OF_TRIAL} WHERE "
    "study_id = :study AND number IN (SELECT number FROM mine) AND (horizon, batch, pausable) "
    "IS DISTINCT FROM (coalesce(:horizon, horizon), coalesce(:batch, batch), "
    "coalesce(:pausable, pausable))) SELECT count(*) FROM mine"
)
