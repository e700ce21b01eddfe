"""``create``, ``extend`` and ``stop``: set the terms of a study for all processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import optuna
import typer

from optuna_deadline.allocation.database.opening import connect, open_table
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.cli.app import Storage, Study, command
from optuna_deadline.cli.databases import (
    check_made,
    is_made,
    load_study,
    make_storage,
    set_earlier_studies,
)
from optuna_deadline.elastic import agree, keep_all_checkpoints
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.reader import table_of
from optuna_deadline.history.text import format_time_of_day
from optuna_deadline.options import Direction, StudyOptions
from optuna_deadline.planning.billing.ledger import BillingLedger
from optuna_deadline.planning.billing.price_schedule import tariff_of
from optuna_deadline.samplers import check_earlier
from optuna_deadline.samplers._named import keep_sampler, make_sampler, sampler_of
from optuna_deadline.study import terms as study_terms
from optuna_deadline.study.policy_choice import parse_call
from optuna_deadline.study.terms import Terms, check_ahead, check_single_objective, passed
from optuna_deadline.values.deadlines import parse_deadline, parse_duration


@command
def create(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    storage: Storage,
    options: StudyOptions,
) -> None:
    """Create a study with a deadline; the same command again changes nothing."""
    _, terms = make(study, storage, options)
    limits = f"deadline {terms}" + (f", budget {terms.budget}" if terms.budget else "")
    print(f"{study}: {terms.direction}, {limits}, policy {terms.policy}.")
    print(f"Next: optuna-deadline worker FILE.py:OBJECTIVE --study {study} --storage URL --cpus 2")


def make(
    name: str, url: str, options: StudyOptions, before: Callable[[], object] = lambda: None
) -> tuple[optuna.Study, Terms]:
    """Create or load a study; return it with its terms.

    All arguments are checked before anything is written, and so is ``before``, which may raise.

    Raises:
        DeadlineError: An argument is invalid, or the study has other terms.
    """
    if not name.strip():
        raise DeadlineError("A study needs a name, as in 'optuna-deadline create digits'.")
    assert options.deadline is not None
    wanted, earlier = parse_deadline(options.deadline), list(options.warm_start_from or [])
    if options.sampler is not None:
        sampler, settings = parse_call(options.sampler, "sampler")
        make_sampler(sampler, settings)
    if earlier:
        check_made(url)
    elif wanted.instant(now := time.time()) <= now and not is_made(url):
        raise passed(wanted)
    if new := not is_made(url):
        before()
    storage = make_storage(url)
    there = name in optuna.get_all_study_names(storage)
    if not there:
        check_ahead(connect(url), wanted)
        if not new:
            before()
    check_earlier(storage, name, earlier)
    created = optuna.create_study(
        study_name=name,
        storage=storage,
        direction=(options.direction or Direction.minimize).value,
        load_if_exists=True,
    )
    _check_direction(created, options.direction)
    if earlier:
        set_earlier_studies(created, earlier)
    if options.sampler is not None:
        keep_sampler(created, sampler, settings)
    if options.keep_all:
        keep_all_checkpoints(created)
    created.sampler = sampler_of(created)
    return created, agree(created, wanted, options.given)


def _check_direction(study: optuna.Study, wanted: Direction | None) -> None:
    check_single_objective(study)
    has = study.direction.name.lower()
    if wanted is not None and wanted.value != has:
        raise DeadlineError(
            f"The study {study.study_name!r} exists, to {has}: leave --direction out, "
            "or choose another name."
        )


@command
def extend(
    study: Study,
    storage: Storage,
    deadline: Annotated[
        str, typer.Option(help="New deadline: 2h30m from now, or 2030-01-31T18:00+01:00.")
    ],
) -> None:
    """Move a study's deadline to a later time; running workers use it at once."""
    found = load_study(study, storage)
    moved = study_terms.extend(open_table(found), found, deadline)
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
    ended = study_terms.end_within(open_table(found), found, seconds)
    print(
        f"{study} ends at {format_time_of_day(ended.deadline)}; after that see optuna-deadline "
        "load-best."
    )
