"""``optuna-deadline extend``: a later deadline, for everybody."""

from __future__ import annotations

from typing import Annotated

import typer

from optuna_deadline.allocation.sql.database.engine import open_table
from optuna_deadline.allocation.sql.store import AllocationTable
from optuna_deadline.cli.app import Storage, Study, command
from optuna_deadline.cli.studies import load_study
from optuna_deadline.history.reader import table_of
from optuna_deadline.planning.billing.ledger import Ledger
from optuna_deadline.planning.billing.price_schedule import tariff_of
from optuna_deadline.study import terms as study_terms


@command
def extend(
    study: Study,
    storage: Storage,
    deadline: Annotated[
        str, typer.Option(help="2h30m from now, or 2030-01-31T18:00+01:00; later than it is.")
    ],
) -> None:
    """Move a study's deadline to a later instant; workers that run obey it at their next look."""
    found = load_study(study, storage)
    moved = study_terms.extend(open_table(found), found, deadline)
    print(f"{study}: deadline {moved}.{_money(*table_of(found))}")


def _money(table: AllocationTable, terms: study_terms.Terms) -> str:
    """What is left to pay for the time that was won, where slots cost something."""
    if terms.budget is None:
        return ""
    ledger, now = Ledger(table, tariff_of(terms.budget, terms.started)), table.now()
    ledger.read(now)
    nodes = [{kind: rate.node} for kind, rate in ledger.tariff.rates.items()]
    left = terms.budget.amount - ledger.spent(now)
    if left <= 0 or not any(ledger.affordable(now, node) for node in nodes):
        return f" Its budget of {terms.budget} is spent, and pays for no slot until then."
    return f" {left:.4g} of {terms.budget} are left."
