"""``set`` and ``stop``: change the terms of a study for all its workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import optuna
import typer

from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.cli.app import Storage, Study, command
from optuna_deadline.cli.databases import load_study
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.reader import table_of
from optuna_deadline.history.text import format_time_of_day
from optuna_deadline.planning.billing.budget import change_budget, change_price
from optuna_deadline.planning.billing.ledger import BillingLedger
from optuna_deadline.planning.billing.price_schedule import tariff_of
from optuna_deadline.study import agreement
from optuna_deadline.study import terms as study_terms
from optuna_deadline.values.budgets import Budget
from optuna_deadline.values.deadlines import parse_duration
from optuna_deadline.values.prices import make_prices, parse_amount


@command
def set_(
    study: Study,
    storage: Storage,
    deadline: Annotated[
        str | None,
        typer.Option(help="Later deadline: 2h30m from now, or 2030-01-31T18:00+01:00."),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(help="Price of a slot per hour from now on: 1.2; or a=12.24/4,b=0.5."),
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Budget of the whole study.")] = None,
) -> None:
    """Change a study's deadline, prices or budget; running workers use them at once."""
    if deadline is price is budget is None:
        raise DeadlineError("Nothing is given to set: give --deadline, --price or --budget.")
    found = load_study(study, storage)
    if price is not None:
        print(set_price(found, price))
    if budget is not None:
        print(set_budget(found, budget))
    if deadline is not None:
        moved = agreement.extend(open_table(found), found, deadline)
        print(f"{study}: deadline {moved}.{_money(*table_of(found))}")


def _money(table: AllocationTable, terms: study_terms.Terms) -> str:
    """A sentence on the budget that is left for the added time, if slots cost money."""
    if terms.budget is None:
        return ""
    ledger, now = BillingLedger(table, tariff_of(terms.budget, terms.started)), table.now()
    ledger.read(now)
    nodes = [{kind: rate.node} for kind, rate in ledger.tariff.rates.items()]
    left = terms.budget.amount - ledger.spent(now)
    if left <= 0 or not any(ledger.affordable(now, node) for node in nodes):
        return f" Its budget of {terms.budget} is spent, and pays for no slot until then."
    return f" {left:.4g} of {terms.budget} are left."


@command
def stop(
    study: Study,
    storage: Storage,
    within: Annotated[
        str, typer.Option(help="Time for running trials to save and leave.")
    ] = "10s",
) -> None:
    """End a study early, as its deadline would; keep the best model."""
    seconds = parse_duration(within, "--within")
    found = load_study(study, storage)
    ended = agreement.end_within(open_table(found), found, seconds)
    print(
        f"{study} ends at {format_time_of_day(ended.deadline)}; after that see optuna-deadline "
        "load-best."
    )


def set_price(study: optuna.Study, prices: str) -> str:
    """Store new prices of a study; return their effect as a sentence.

    Raises:
        DeadlineError: The study has no budget or has ended, or it does not have these prices.
    """
    table, terms = table_of(study)
    if terms.budget is None:
        raise DeadlineError(
            f"The study {terms.name!r} has no budget, and its slots have no price."
        )
    found, currency = make_prices(prices)
    _check_currency(terms.budget, currency, "price")
    lines = []
    for kind, new in found.items():
        end = change_price(table, terms.budget, terms.started, kind, new)
        of = f" of {kind}" if kind else ""
        costs = f"a slot{of} costs {new.per_hour:g} for an hour from now"
        lines.append(f"{terms.name}: {costs}{_lasts(end)}.")
    return "\n".join(lines)


def set_budget(study: optuna.Study, budget: str) -> str:
    """Store a new budget of a study; return its effect as a sentence.

    Raises:
        DeadlineError: The study has no budget or has ended, or has spent more than this.
    """
    table, terms = table_of(study)
    if terms.budget is None:
        raise DeadlineError(
            f"The study {terms.name!r} has no price, so it cannot have a budget: create a study "
            "with --budget and --price."
        )
    amount, currency = parse_amount(budget, "budget")
    _check_currency(terms.budget, currency, "new budget")
    new = replace(terms.budget, amount=amount)
    end = change_budget(table, terms.budget, terms.started, amount)
    return f"{terms.name}: budget {new}{_lasts(end)}."


def _check_currency(budget: Budget, currency: str, what: str) -> None:
    if currency and currency != budget.currency:
        raise DeadlineError(
            f"The study's budget is in {budget.currency} and the {what} in {currency}; give both "
            "in one currency."
        )


def _lasts(end: float | None) -> str:
    return "" if end is None else f"; as it is, the money lasts until {format_time_of_day(end)}"
