"""``optuna-deadline run``: a study and a worker for it on this machine, with one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optuna_deadline.cli.app import Settings, command
from optuna_deadline.cli.create import WhichWay, make, price_given
from optuna_deadline.cli.logs import Log, choose
from optuna_deadline.cli.options import (
    CheckpointPlace,
    Deadline,
    Earlier,
    HostType,
    MaxResource,
    MaxSlots,
    MinResource,
    Money,
    ObjectivePlace,
    Park,
    Patience,
    PolicyName,
    PriceFile,
    Publish,
    ReductionFactor,
    SlotPrice,
)
from optuna_deadline.cli.worker import work
from optuna_deadline.elastic import CHECKPOINTS, ElasticWorker, prepare
from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies import DEFAULT
from optuna_deadline.values.budgets import make_budget
from optuna_deadline.worker.devices import present_gpus
from optuna_deadline.worker.segment import PATIENCE

_STORAGE = "sqlite:///study.db"


@command
def run(
    objective: ObjectivePlace,
    deadline: Deadline,
    study: Annotated[
        str | None, typer.Option(help="Name of the study; that of the objective's file or module.")
    ] = None,
    storage: Annotated[
        str, typer.Option(help="URL of the study's database (SQLite, PostgreSQL).")
    ] = _STORAGE,
    direction: WhichWay = None,
    gpus: Annotated[
        str | None, typer.Option(help="GPUs to train on: all, or 0,1; all where nothing is said.")
    ] = None,
    cpus: Annotated[int | None, typer.Option(help="CPU slots to train on.")] = None,
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
    host_type: HostType = None,
    checkpoints: CheckpointPlace = str(CHECKPOINTS),
    patience: Patience = PATIENCE,
    park: Park = 0,
    publish: Publish = None,
    log: Annotated[Log, typer.Option(help="How messages are written.")] = Log.text,
) -> None:
    """Make a study and train it on this machine until the deadline; workers may join it.

    The same command again goes on with the study, as long as its deadline is ahead.
    """
    choose(log)
    if gpus is None and cpus is None:
        if not present_gpus():
            raise DeadlineError("This machine has no GPU: say how many CPU slots, as in --cpus 2.")
        gpus = "all"
    money = make_budget(budget, price_given(price, prices))
    source, offer = prepare(
        objective, gpus, cpus, patience=patience, park=park, checkpoints=checkpoints,
        budget=money, host_type=host_type, max_slots=max_slots,
    )  # fmt: skip
    made, terms = make(
        study or _name(objective), storage, deadline, direction, policy, settings, min_resource,
        max_resource, reduction_factor, money, earlier, max_slots=max_slots,
    )  # fmt: skip
    worker = ElasticWorker(
        made, source, terms, offer=offer, checkpoints=checkpoints, patience=patience, park=park,
        publish=publish, host_type=host_type,
    )  # fmt: skip
    work(worker, log)


def _name(objective: str) -> str:
    """The name of the objective's file or module."""
    where = objective.rpartition(":")[0]
    return Path(where).stem if where.endswith(".py") else where.rpartition(".")[2]
