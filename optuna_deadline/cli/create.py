"""``optuna-deadline create``: a study with its deadline and policy, fixed for everybody."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import optuna
import typer

from optuna_deadline.budgets import make_budget
from optuna_deadline.choice import merge, parse_settings
from optuna_deadline.cli.app import Settings, Storage, command
from optuna_deadline.cli.databases import make_storage
from optuna_deadline.cli.options import (
    Deadline,
    Earlier,
    MaxResource,
    MinResource,
    Money,
    PolicyName,
    PriceFile,
    ReductionFactor,
    SlotPrice,
)
from optuna_deadline.cli.studies import begin_with, sampler_of
from optuna_deadline.elastic import agree
from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies import DEFAULT
from optuna_deadline.prices import PriceLike, read_prices
from optuna_deadline.terms import Terms


class Direction(str, Enum):
    """Optuna's two directions."""

    minimize = "minimize"
    maximize = "maximize"


@command
def create(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    storage: Storage,
    deadline: Deadline,
    direction: Annotated[
        Direction, typer.Option(help="Which way is better.")
    ] = Direction.minimize,
    policy: PolicyName = DEFAULT,
    settings: Settings = None,
    min_resource: MinResource = 1,
    max_resource: MaxResource = None,
    reduction_factor: ReductionFactor = None,
    budget: Money = None,
    price: SlotPrice = None,
    prices: PriceFile = None,
    earlier: Earlier = None,
    extend: Annotated[bool, typer.Option(help="Move an existing study's deadline.")] = False,
) -> None:
    """Create a study and fix its deadline; creating it again the same way changes nothing."""
    _, terms = make(
        study, storage, deadline, direction, policy, settings, min_resource, max_resource,
        reduction_factor, budget, price, prices, earlier, extend,
    )  # fmt: skip
    limits = f"deadline {terms}" + (f", budget {terms.budget}" if terms.budget else "")
    print(f"{study}: {direction.value}, {limits}, policy {terms.policy}.")
    print(f"Next: optuna-deadline worker FILE.py:OBJECTIVE --study {study} --storage URL --cpus 2")


def make(
    name: str,
    url: str,
    deadline: str,
    direction: Direction,
    policy: str,
    settings: list[str] | None,
    min_resource: int,
    max_resource: int | None,
    reduction_factor: int | None,
    budget: str | None,
    price: str | None,
    prices: str | None = None,
    earlier: list[str] | None = None,
    extend: bool = False,
) -> tuple[optuna.Study, Terms]:
    """A study that exists, and its terms; see :func:`create` for the arguments."""
    money = make_budget(budget, _given(price, prices))
    created = optuna.create_study(
        study_name=name,
        storage=make_storage(url),
        direction=direction.value,
        load_if_exists=True,
    )
    if earlier:
        begin_with(created, earlier)
    created.sampler = sampler_of(created)
    resources = {
        "min_resource": min_resource,
        "max_resource": max_resource,
        "reduction_factor": reduction_factor,
    }
    parameters = merge(resources, parse_settings(settings))
    return created, agree(created, deadline, policy, parameters, extend=extend, budget=money)


def _given(price: str | None, file: str | None) -> PriceLike | None:
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
