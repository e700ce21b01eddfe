"""Requests of users: to hold a trial, to pin its gang's size, to set a price or a budget.

Any client of the database writes a request, without a planner's term: planners write other columns
of the same rows. It takes effect once a planner has read it. From the commit on, no held trial is
granted a slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optuna_deadline.allocation.database import schema
from optuna_deadline.allocation.database.columns import stored
from optuna_deadline.allocation.database.transaction import Transaction
from optuna_deadline.allocation.rules import earlier_end, types_detail
from optuna_deadline.allocation.table.base import IS_ALIVE, OF_TRIAL
from optuna_deadline.allocation.table.plan import PlannerWrites


class Requests(PlannerWrites):
    """What a user writes."""

    def hold(self, number: int, held: bool) -> bool:
        """Hold a live trial without slots, or release the hold.

        It is granted nothing; its slots are released through the plan. A repeated call keeps the
        time of the first one.

        Returns:
            False if the trial has ended or is not in the table.
        """
        before = "held IS NULL" if held else "held IS NOT NULL"
        with self._tx() as tx:
            since = tx.now if held else None
            return self._request(
                tx, "hold", number, f"held = :value WHERE {before}", since, held=held
            )

    def pin(self, number: int, slots: int | None) -> bool:
        """Pin the size of a live trial's gang; None removes the pin.

        Returns:
            False if the trial has ended or is not in the table.
        """
        with self._tx() as tx:
            change = "pinned = :value WHERE pinned IS DISTINCT FROM :value"
            return self._request(tx, "pin", number, change, slots, slots=slots)

    def _request(
        self, tx: Transaction, kind: str, number: int, change: str, value: Any, **detail: Any
    ) -> bool:
        """Write a request to a live trial's row if it changes anything."""
        alive = f"{OF_TRIAL} AND {IS_ALIVE}"
        if tx.run(f"UPDATE @trial SET {change} AND {alive}", number=number, value=value):
            tx.event(kind, number=number, **detail)
            self._wake_planner(tx)
            return True
        return tx.row(f"SELECT 1 FROM @trial WHERE {alive}", number=number) is not None

    def set_price(
        self,
        host_type: str,
        per_hour: float,
        slots: int,
        funds_end: float,
        seen: tuple[int | None, float | None],
        types: Mapping[str, int] | None = None,
    ) -> bool:
        """Set the price of a slot of a host type from now on.

        The end of the study's money moves to ``funds_end`` in the same transaction, so that the
        budget holds without a planner. It always moves a little, so that a plan with the former
        price is refused.

        Args:
            host_type: The type.
            per_hour: The price of one slot for an hour.
            slots: Slots that are bought together, for a new type.
            funds_end: Until when the money lasts at the new price.
            seen: The pool's size and end that were used to compute this.
            types: The pool's slots by host type, if the prices depend on it.

        Returns:
            False if the stored ones differ: read again.
        """
        price = {"type": host_type, "per_hour": per_hour, "slots": slots}
        with self._tx() as tx:
            return self._set_money(tx, "price", price, funds_end, seen, types)

    def set_budget(
        self,
        money: Mapping[str, Any],
        funds_end: float,
        seen: tuple[int | None, float | None],
        types: Mapping[str, int] | None = None,
    ) -> bool:
        """Set the budget of the study; the rest is as for :meth:`set_price`.

        Args:
            money: The budget and the initial prices, as the study's row holds them.
            funds_end: Until when the new budget lasts.
            seen: The pool's size and end that were used to compute this.
            types: The pool's slots by host type, if the prices depend on it.

        Returns:
            False if the stored ones differ: read again.
        """
        amount = {"amount": money["amount"]}
        with self._tx() as tx:
            if not self._set_money(tx, "budget", amount, funds_end, seen, types):
                return False
            new = stored(schema.study.c.money, money)
            tx.run("UPDATE @study SET money = :money WHERE study_id = :study", money=new)
            return True

    def _set_money(
        self,
        tx: Transaction,
        kind: str,
        detail: Mapping[str, Any],
        funds_end: float,
        seen: tuple[int | None, float | None],
        types: Mapping[str, int] | None,
    ) -> bool:
        """Record a change of prices or budget, and move the end of the money."""
        row = self._lock_study(tx)
        if row is None or seen != row[1:]:
            return False
        deadline, size, before = row
        end = earlier_end(deadline, before, funds_end)
        tx.run("UPDATE @study SET funds_end = :end WHERE study_id = :study", end=end)
        tx.event(kind, **detail)
        tx.event("pool", slots=size or 0, before=size or 0, until=end, **types_detail(types))
        tx.notify()
        return True
