"""A price is told while the study runs: the end of its money moves with it, at once.

Not at the planner's next look: a planner may die just then, and the budget holds all the same.
"""

from __future__ import annotations

from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.errors import DeadlineError
from optuna_deadline.planning.billing.ledger import Ledger
from optuna_deadline.planning.billing.price_schedule import tariff_of
from optuna_deadline.values.budgets import Budget
from optuna_deadline.values.prices import Price

#: A planner may write between a look and the price: then it is looked again.
_TRIES = 100


def tell_price(
    table: AllocationStore, budget: Budget, started: float, kind: str, price: Price
) -> float | None:
    """Tell a study what slots cost from now on.

    Args:
        table: The study's.
        budget: What it may spend, and the prices at first.
        started: When it began.
        kind: The host type; "" where one price is for all.
        price: The new one; how the bill is rounded stays as it is.

    Returns:
        When the money ends, as things stand; None where the deadline comes first, or nothing is
        paid for yet.

    Raises:
        DeadlineError: The study has ended, or its prices go by host type and this one does not,
            or the other way round.
    """
    ledger = Ledger(table, tariff_of(budget, started))
    for _ in range(_TRIES):
        orders = table.orders("")
        ledger.read(orders.now)
        _check(ledger, kind, price, settled=orders.settled or orders.now >= orders.end)
        wanted = ledger.wanted
        bill = ledger.told(orders.now, kind, price.per_hour, price.node)
        end = bill.lasts_until(orders.now, wanted, orders.deadline)
        seen = orders.pool_slots, orders.funds_end
        types = None if kind == "" else wanted
        if table.set_price(kind, price.per_hour, price.node, end, seen, types):
            return end if end < orders.deadline and any(wanted.values()) else None
    raise DeadlineError("The study's plan changes all the time; tell the price again.")


def _check(ledger: Ledger, kind: str, price: Price, *, settled: bool) -> None:
    if settled:
        raise DeadlineError("The study has ended, and no price changes that.")
    rates = ledger.tariff.rates
    if (kind == "") != ("" in rates):
        known = ", ".join(sorted(rates)[:8])
        raise DeadlineError(
            f"The study's prices are by host type ({known}): write TYPE=PRICE."
            if kind == ""
            else "The study has one price for all hosts: write it alone, as in 1.2."
        )
    rate = rates.get(kind)
    if rate is not None and price.node not in (1, rate.node):
        raise DeadlineError(
            f"A host of {kind or 'this study'} has {rate.node} slots that are bought at once, not "
            f"{price.node}."
        )
