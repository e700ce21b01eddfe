"""``optuna-deadline price``: what slots cost from now on."""

from __future__ import annotations

from typing import Annotated

import optuna
import typer

from optuna_deadline.cli.app import Storage, Study, command
from optuna_deadline.cli.studies import load_study
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.reader import table_of
from optuna_deadline.history.words import at_clock
from optuna_deadline.planning.billing.repricing import tell_price
from optuna_deadline.values.prices import make_prices


@command
def price(
    study: Study,
    prices: Annotated[
        str, typer.Argument(help="Of a slot for an hour: 1.2; or by host type, a=12.24/4,b=0.5.")
    ],
    storage: Storage,
) -> None:
    """Tell a study what slots cost from now on; what was billed stays billed as it was."""
    print(tell(load_study(study, storage), prices))


def tell(study: optuna.Study, prices: str) -> str:
    """Tell a study prices as people write them; returns what comes of them, in words.

    Raises:
        DeadlineError: The study has no budget or has ended, or they are none of its prices.
    """
    table, terms = table_of(study)
    if terms.budget is None:
        raise DeadlineError(f"The study {terms.name!r} has no budget, and its slots cost nothing.")
    found, currency = make_prices(prices)
    if currency and currency != terms.budget.currency:
        raise DeadlineError(
            f"The study's budget is in {terms.budget.currency} and the price in {currency}; give "
            "both in one currency."
        )
    said = []
    for kind, new in found.items():
        end = tell_price(table, terms.budget, terms.started, kind, new)
        of = f" of {kind}" if kind else ""
        last = "" if end is None else f"; as it is, the money lasts until {at_clock(end)}"
        said.append(f"{terms.name}: a slot{of} costs {new.per_hour:g} for an hour from now{last}.")
    return "\n".join(said)
