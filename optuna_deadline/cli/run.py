"""``optuna-deadline run``: a study and a worker for it on this machine, with one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optuna_deadline.cli.app import Settings, command
from optuna_deadline.cli.create import Direction, make
from optuna_deadline.cli.logs import Log, choose
from optuna_deadline.cli.options import (
    CheckpointPlace,
    Deadline,
    Earlier,
    HostType,
    MaxResource,
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
from optuna_deadline.elastic import CHECKPOINTS, ElasticWorker
from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies import DEFAULT
from optuna_deadline.workers.devices import present_gpus
from optuna_deadline.workers.gang import PATIENCE

_STORAGE = "sqlite:///study.db"


@command
def run(
    objective: ObjectivePlace,
    deadline: Deadline,
    study: Annotated[
        str | None, typer.Option(help="Name of the study; that of the objective's file.")
    ] = None,
    storage: Annotated[
        str, typer.Option(help="URL of the study's database (SQLite, PostgreSQL).")
    ] = _STORAGE,
    direction: Annotated[
        Direction, typer.Option(help="Which way is better.")
    ] = Direction.minimize,
    gpus: Annotated[
        str | None, typer.Option(help="GPUs to train on: all, or 0,1; all where nothing is said.")
    ] = None,
    cpus: Annotated[int | None, typer.Option(help="CPU slots to train on.")] = None,
    policy: PolicyName = DEFAULT,
    settings: Settings = None,
    min_resource: MinResource = 1,
    max_resource: MaxResource = None,
    reduction_factor: ReductionFactor = None,
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
    name = study or Path(objective.rpartition(":")[0]).stem
    if not name:
        raise DeadlineError(f"{objective!r} names no objective: write FILE.py:FUNCTION.")
    made, terms = make(
        name, storage, deadline, direction, policy, settings, min_resource, max_resource,
        reduction_factor, budget, price, prices, earlier,
    )  # fmt: skip
    worker = ElasticWorker(
        made, objective, terms, gpus=gpus, cpus=cpus, checkpoints=checkpoints, patience=patience,
        park=park, publish=publish, host_type=host_type,
    )  # fmt: skip
    work(worker, log)
