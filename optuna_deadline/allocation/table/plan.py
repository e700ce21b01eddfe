"""The planner's transitions: each checks that its term still runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from optuna_deadline.allocation.database.text import listed
from optuna_deadline.allocation.database.transaction import Transaction
from optuna_deadline.allocation.records import Assignment
from optuna_deadline.allocation.rules import duration_detail, placement_detail, types_detail
from optuna_deadline.allocation.table.base import IS_ALIVE, OF_TRIAL
from optuna_deadline.allocation.table.deadlines import move_with_clock
from optuna_deadline.allocation.table.segments import Segments
from optuna_deadline.checkpoints.storage import Location

#: Events of an ended study from which nothing that is shown is computed: two fifths of all.
_FOLDED_EVENTS = ("checkpoint", "gate", "elect")


class PlannerWrites(Segments):
    """What a planner writes."""

    def open_trial(
        self, worker_id: str, term: int, number: int, trial_id: int, parent: int | None = None
    ) -> None:
        """Add an Optuna trial to the table; one that is there already stays as it is.

        Args:
            worker_id: The planner.
            term: Its term.
            number: The trial's number.
            trial_id: Its id in Optuna's storage.
            parent: The trial whose checkpoint it starts from.

        Raises:
            LeaseLost: Another term has begun.
        """
        with self._tx("open_trial") as tx:
            self._guard_planner(tx, worker_id, term)
            if tx.run(
                "INSERT INTO @trial (study_id, number, trial_id, state, fence, desired_mode, "
                "desired_slots, reason, desired_since, told, failures, parent) VALUES (:study, "
                ":number, :trial_id, 'ready', 0, 'pause', 0, 'new', :now, false, 0, :parent) "
                "ON CONFLICT DO NOTHING",
                number=number, trial_id=trial_id, parent=parent,
            ):  # fmt: skip
                detail: dict[str, Any] = {} if parent is None else {"parent": parent}
                tx.event("open", number=number, term=term, **detail)

    def write_plan(
        self,
        worker_id: str,
        term: int,
        changes: Sequence[Assignment],
        seconds: float | None = None,
    ) -> int:
        """Write the changes of the plan; ended trials are left alone.

        Args:
            worker_id: The planner.
            term: Its term.
            changes: Lines of trials.
            seconds: The time of reading and planning; the plan's first event keeps it.

        Returns:
            The plan's epoch, higher than any before.

        Raises:
            LeaseLost: Another term has begun.
        """
        lines = sorted(changes, key=attrgetter("number"))
        with self._tx("write_plan") as tx:
            self._guard_planner(tx, worker_id, term)
            concerned = self._write_lines(tx, lines) if lines else []
            for line in lines:
                concerned += [line.worker, *[name for name, _ in line.others]]
                tx.event(
                    "plan", number=line.number, term=term, worker=line.worker, mode=line.mode,
                    slots=line.slots, reason=line.reason, **placement_detail(line.others),
                    **duration_detail(seconds),
                )  # fmt: skip
                seconds = None
            epoch = tx.value(
                "UPDATE @pool SET epoch = epoch + 1 WHERE name = :pool RETURNING epoch"
            )
            tx.notify(concerned)
            return int(epoch)

    @staticmethod
    def _write_lines(tx: Transaction, lines: Sequence[Assignment]) -> list[str | None]:
        """Write the lines in one statement; returns the owners of their trials."""
        rows = [
            (one.number, one.mode, one.worker, one.slots, one.reason, _stored(one.others))
            for one in lines
        ]
        owners = tx.rows(  # rows are locked in one order
            "SELECT owner FROM @trial WHERE study_id = :study AND number IN each(:numbers) AND "
            f"{IS_ALIVE} ORDER BY number FOR UPDATE",
            numbers=listed([line.number for line in lines]),
        )
        tx.run(
            "UPDATE @trial SET desired_mode = v.mode, desired_worker = v.worker, desired_slots = "
            "v.slots, reason = v.why, desired_others = v.others, desired_since = :now FROM (SELECT"
            " CAST(value ->> 0 AS INTEGER) AS trial, value ->> 1 AS mode, value ->> 2 AS worker, "
            "CAST(value ->> 3 AS INTEGER) AS slots, value ->> 4 AS why, value ->> 5 AS others "
            f"FROM rows(:rows)) v WHERE study_id = :study AND number = v.trial AND {IS_ALIVE}",
            rows=listed(rows),
        )
        return [owner for (owner,) in owners]

    def conclude(
        self,
        worker_id: str,
        term: int,
        number: int,
        state: str,
        reason: str,
        value: float | None = None,
        *,
        unreported: bool = False,
    ) -> bool:
        """End a trial without a worker; False if a worker trains it, or it has ended.

        Args:
            worker_id: The planner.
            term: Its term.
            number: The trial.
            state: Its end: retired, failed or complete.
            reason: The reason, in words.
            value: The value for Optuna of a complete trial.
            unreported: Whether to replace the end of a retired or failed trial if Optuna does not
                know it yet.

        Raises:
            LeaseLost: Another term has begun.
        """
        with self._tx("conclude") as tx:
            self._guard_planner(tx, worker_id, term)
            ended = tx.run(
                "UPDATE @trial SET state = :state, value = :value, desired_mode = 'stop', "
                f"desired_slots = 0, reason = :reason WHERE {OF_TRIAL} AND owner IS NULL AND "
                f"({IS_ALIVE} OR (:unreported AND state IN ('retired', 'failed') AND NOT told))",
                number=number, state=state, value=value, reason=reason, unreported=unreported,
            )  # fmt: skip
            if ended:
                tx.event(state, number=number, term=term, worker=worker_id, reason=reason)
            return bool(ended)

    def retire(self, worker_id: str, term: int, reasons: Mapping[int, str]) -> int:
        """Retire those of the trials that have no worker, in one transaction.

        Args:
            worker_id: The planner.
            term: Its term.
            reasons: By trial number, why.

        Returns:
            The number of trials that this call ended.

        Raises:
            LeaseLost: Another term has begun.
        """
        with self._tx("retire") as tx:
            self._guard_planner(tx, worker_id, term)
            ended = tx.rows(
                "UPDATE @trial SET state = 'retired', value = NULL, desired_mode = 'stop', "
                "desired_slots = 0, reason = v.why FROM (SELECT CAST(value ->> 0 AS INTEGER) AS "
                "trial, value ->> 1 AS why FROM rows(:rows)) v WHERE study_id = :study AND "
                f"number = v.trial AND owner IS NULL AND {IS_ALIVE} RETURNING number",
                rows=listed(sorted(reasons.items())),
            )
            for (number,) in sorted(ended):
                tx.event(
                    "retired", number=number, term=term, worker=worker_id, reason=reasons[number]
                )
            return len(ended)

    def mark_ends_reported(self, *numbers: int) -> None:
        """Record that Optuna knows the ends of these trials."""
        with self._tx("mark_told") as tx:
            tx.run(
                "UPDATE @trial SET told = true WHERE study_id = :study AND number IN each(:ids)",
                ids=listed(sorted(numbers)),
            )

    def set_gate(self, worker_id: str, term: int, is_open: bool) -> None:
        """Open or close the gate for every process of the study.

        Raises:
            LeaseLost: Another term has begun.
        """
        with self._tx() as tx:
            self._guard_planner(tx, worker_id, term)
            if tx.run(
                "UPDATE @study SET gate_closed = CASE WHEN :open THEN NULL ELSE :now END WHERE "
                "study_id = :study AND (gate_closed IS NULL) <> :open",
                open=is_open,
            ):
                tx.event("gate", term=term, worker=worker_id, open=is_open)

    def resize_pool(
        self,
        worker_id: str,
        term: int,
        slots: int,
        funds_end: float,
        types: Mapping[str, int] | None = None,
        seen: tuple[int | None, float | None] | None = None,
    ) -> bool:
        """Set the number of slots that the study pays for, and until when its money lasts with it.

        A change of either is an event, with the slots by host type if given. Nothing is granted
        from ``funds_end`` on, nor beyond that number of slots. If the stored slots and end differ
        from ``seen``, the price has changed in between, and nothing is written.

        Returns:
            False if nothing was written for that reason.

        Raises:
            LeaseLost: Another term has begun.
        """
        with self._tx("resize_pool") as tx:
            self._guard_planner(tx, worker_id, term)
            row = self._lock_study(tx)
            if row is None or (types is None and row[1:] == (slots, funds_end)):
                return row is not None
            if seen is not None and seen != row[1:]:
                return False
            tx.run(
                "UPDATE @study SET pool_slots = :slots, funds_end = :end WHERE study_id = :study",
                slots=slots, end=funds_end,
            )  # fmt: skip
            tx.event(
                "pool", term=term, worker=worker_id, slots=slots, before=row[1] or 0,
                until=funds_end, **types_detail(types),
            )  # fmt: skip
            tx.notify()
            return True

    def follow_clock(self, worker_id: str, term: int, step: float, seen: float) -> bool:
        """Move the ends of the study with the database's clock, which was set.

        Processes that know the former deadline can still join.

        Args:
            worker_id: The planner.
            term: Its term.
            step: By how many seconds.
            seen: The deadline that is moved.

        Returns:
            False if another process has moved it in between.

        Raises:
            LeaseLost: Another term has begun.
        """
        with self._tx() as tx:
            self._guard_planner(tx, worker_id, term)
            if moved := move_with_clock(tx, tx.study, step, seen):
                tx.event("clock", term=term, worker=worker_id, step=step)
                tx.notify()
            return moved

    def settle(
        self, worker_id: str, term: int, seen: float | None = None, kept: Location | None = None
    ) -> bool:
        """Close the study: nothing is granted from now on.

        Args:
            worker_id: The planner.
            term: Its term.
            seen: The deadline at which it closes the study; None for any.
            kept: The one checkpoint that stays; None if all do.

        Returns:
            False if the stored deadline differs from ``seen``; then the study continues.

        Raises:
            LeaseLost: Another term has begun.
        """
        with self._tx("settle") as tx:
            self._guard_planner(tx, worker_id, term)
            row = self._lock_study(tx)
            if row is None or seen not in (None, row[0]):
                return False
            if tx.run(
                "UPDATE @study SET settled = :now WHERE study_id = :study AND settled IS NULL"
            ):
                named: dict[str, Any] = {} if kept is None else {"kept": str(kept)}
                tx.event("settle", term=term, worker=worker_id, **named)
            tx.notify()
            return True

    def fold(self) -> tuple[int, int]:
        """Keep only the numbers of some events of an ended study, and forget its former workers.

        Trials, reports, segments, checkpoints with their origins, the events of trials and slots,
        and the planner's term stay. A study with a budget stays as it is.

        Returns:
            The deleted events and workers.
        """
        with self._tx() as tx:
            ended = tx.row(
                "SELECT 1 FROM @study WHERE study_id = :study AND settled IS NOT NULL AND money "
                "IS NULL FOR NO KEY UPDATE"
            )
            mine = f"FROM @event WHERE study_id = :study AND kind IN {_FOLDED_EVENTS}"
            counts = dict(tx.rows(f"SELECT kind, count(*) {mine} GROUP BY kind")) if ended else {}
            if not counts:
                return 0, 0
            events = tx.run(f"DELETE {mine}")
            workers = tx.run(
                "DELETE FROM @worker WHERE study_id = :study AND state <> 'live' AND id NOT IN "
                "(SELECT g.worker FROM @segment g JOIN @checkpoint c ON c.study_id = g.study_id "
                "AND c.number = g.number AND c.fence = g.fence WHERE g.study_id = :study)"
            )
            tx.event("fold", events=counts, workers=workers)
            return events, workers

    @staticmethod
    def _lock_study(tx: Transaction) -> tuple[Any, ...] | None:
        """(deadline, slots that it pays for, end of its money), locked until the end."""
        return tx.row(
            "SELECT deadline, pool_slots, funds_end FROM @study WHERE study_id = :study "
            "FOR NO KEY UPDATE"
        )


def _stored(others: Sequence[tuple[str, int]]) -> str | None:
    return listed(others) if others else None
