"""``optuna-deadline create``: a study with its deadline and policy, fixed for everybody."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import optuna
import typer

from optuna_deadline.budgets import make_budget
from optuna_deadline.choice import merge, parse_settings
from optuna_deadline.cli.app import Settings, Storage, command
from optuna_deadline.cli.studies import open_storage
from optuna_deadline.elastic import agree
from optuna_deadline.policies import DEFAULT
from optuna_deadline.samplers import DeadlineSampler


class Direction(str, Enum):
    """Optuna's two directions."""

    minimize = "minimize"
    maximize = "maximize"


@command
def create(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    storage: Storage,
    deadline: Annotated[str, typer.Option(help="2h30m, or 2030-01-31T18:00+01:00.")],
    direction: Annotated[
        Direction, typer.Option(help="Which way is better.")
    ] = Direction.minimize,
    policy: Annotated[
        str, typer.Option(help="Who decides: a name, FILE.py:NAME or MODULE:NAME.")
    ] = DEFAULT,
    settings: Settings = None,
    min_resource: Annotated[int, typer.Option(help="First rung, in report steps.")] = 1,
    max_resource: Annotated[
        int | None, typer.Option(help="Step at which a trial is done; the objective's by default.")
    ] = None,
    reduction_factor: Annotated[int, typer.Option(help="A rung keeps one in this many.")] = 4,
    budget: Annotated[
        str | None, typer.Option(help="What may be spent, as in 20usd; needs --price.")
    ] = None,
    price: Annotated[str | None, typer.Option(help="Of a slot for an hour, as in 0.9.")] = None,
    extend: Annotated[bool, typer.Option(help="Move an existing study's deadline.")] = False,
) -> None:
    """Create a study and fix its deadline; creating it again the same way changes nothing."""
    money = make_budget(budget, price)
    created = optuna.create_study(
        study_name=study,
        storage=open_storage(storage),
        direction=direction.value,
        sampler=DeadlineSampler(),
        load_if_exists=True,
    )
    resources = {
        "min_resource": min_resource,
        "max_resource": max_resource,
        "reduction_factor": reduction_factor,
    }
    parameters = merge(resources, parse_settings(settings))
    terms = agree(created, deadline, policy, parameters, extend=extend, budget=money)
    limits = f"deadline {terms}" + (f", budget {terms.budget}" if terms.budget else "")
    print(f"{study}: {direction.value}, {limits}, policy {terms.policy}.")
    print(f"Next: optuna-deadline worker FILE.py:OBJECTIVE --study {study} --storage URL --cpus 2")
