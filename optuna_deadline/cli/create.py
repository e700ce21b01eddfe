"""``optuna-deadline create``: a study with its deadline and policy, fixed for everybody."""

from __future__ import annotations

import time
from enum import Enum
from typing import Annotated

import optuna
import typer

from optuna_deadline.allocation.sql.database.engine import connect
from optuna_deadline.cli.app import Settings, Storage, command
from optuna_deadline.cli.databases import check_made, is_made, make_storage
from optuna_deadline.cli.options import (
    Deadline,
    Earlier,
    MaxResource,
    MaxSlots,
    MinResource,
    Money,
    PolicyName,
    PriceFile,
    ReductionFactor,
    SlotPrice,
)
from optuna_deadline.cli.studies import begin_with, sampler_of
from optuna_deadline.elastic import agree, check, check_max_slots
from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies import DEFAULT
from optuna_deadline.samplers import check_earlier
from optuna_deadline.study.policy_choice import merge, parse_settings
from optuna_deadline.study.terms import Terms, check_ahead, check_single_objective, passed
from optuna_deadline.values.budgets import Budget, make_budget
from optuna_deadline.values.deadlines import parse_deadline
from optuna_deadline.values.prices import PriceLike, read_prices


class Direction(str, Enum):
    """Optuna's two directions."""

    minimize = "minimize"
    maximize = "maximize"


WhichWay = Annotated[
    Direction | None, typer.Option(help="Which way is better; minimize for a new study.")
]


@command
def create(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    storage: Storage,
    deadline: Deadline,
    direction: WhichWay = None,
    policy: PolicyName = DEFAULT,
    settings: Settings = None,
    min_resource: MinResource = 1,
    max_resource: MaxResource = None,
    reduction_factor: ReductionFactor = None,
    max_slots: MaxSlots = None,
    budget: Money = None,
    price: SlotPrice = None,
    prices: PriceFile = None,
    earlier: Earlier = None,
    extend: Annotated[bool, typer.Option(help="Move an existing study's deadline.")] = False,
) -> None:
    """Create a study and fix its deadline; creating it again the same way changes nothing."""
    _, terms = make(
        study, storage, deadline, direction, policy, settings, min_resource, max_resource,
        reduction_factor, make_budget(budget, price_given(price, prices)), earlier, extend,
        max_slots,
    )  # fmt: skip
    limits = f"deadline {terms}" + (f", budget {terms.budget}" if terms.budget else "")
    print(f"{study}: {terms.direction}, {limits}, policy {terms.policy}.")
    print(f"Next: optuna-deadline worker FILE.py:OBJECTIVE --study {study} --storage URL --cpus 2")


def make(
    name: str,
    url: str,
    deadline: str,
    direction: Direction | None,
    policy: str,
    settings: list[str] | None,
    min_resource: int,
    max_resource: int | None,
    reduction_factor: int | None,
    money: Budget | None,
    earlier: list[str] | None = None,
    extend: bool = False,
    max_slots: int | None = None,
) -> tuple[optuna.Study, Terms]:
    """A study that exists, and its terms; see :func:`create` for the arguments.

    All that can be refused is refused before there is anything that would be left behind.

    Raises:
        DeadlineError: One of the arguments makes no sense, or the study has other terms.
    """
    if not name.strip():
        raise DeadlineError("A study needs a name, as in 'optuna-deadline create digits'.")
    resources = {
        "min_resource": min_resource,
        "max_resource": max_resource,
        "reduction_factor": reduction_factor,
    }
    parameters = merge(resources, parse_settings(settings))
    wanted = parse_deadline(deadline)
    check(policy, parameters)
    check_max_slots(max_slots)
    if earlier:
        check_made(url)
    elif wanted.instant(now := time.time()) <= now and not is_made(url):
        raise passed(wanted)
    storage = make_storage(url)
    there = name in optuna.get_all_study_names(storage)
    if not there:
        check_ahead(connect(url), wanted)
    check_earlier(storage, name, earlier or [])
    created = optuna.create_study(
        study_name=name,
        storage=storage,
        direction=(direction or Direction.minimize).value,
        load_if_exists=True,
    )
    _check_direction(created, direction)
    if earlier:
        begin_with(created, earlier)
    created.sampler = sampler_of(created)
    return created, agree(
        created, wanted, policy, parameters, extend=extend, budget=money, max_slots=max_slots
    )


def _check_direction(study: optuna.Study, wanted: Direction | None) -> None:
    check_single_objective(study)
    has = study.direction.name.lower()
    if wanted is not None and wanted.value != has:
        raise DeadlineError(
            f"The study {study.study_name!r} is there already, to {has}: leave --direction out, "
            "or take another name."
        )


def price_given(price: str | None, file: str | None) -> PriceLike | None:
    """The prices as the command line has them.

    Raises:
        DeadlineError: They are given twice, or cannot be read.
    """
    if file is None:
        return price
    if price is not None:
        raise DeadlineError("Give --price or --prices, not both.")
    path, colon, columns = file.rpartition(":")
    if not colon or "," not in columns:
        return read_prices(file)
    return read_prices(path, [name.strip() for name in columns.split(",")])
