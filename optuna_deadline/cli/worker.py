"""``optuna-deadline worker``: brings this machine's slots and trains until the deadline."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from typing import Annotated

import typer

from optuna_deadline.cli.app import INTERRUPTED, TIME_WAS_OVER, Storage, command, console
from optuna_deadline.cli.live.screen import shown
from optuna_deadline.cli.live.watching import Watcher
from optuna_deadline.cli.logs import Log, choose, logged
from optuna_deadline.cli.options import (
    AcrossHosts,
    CheckpointPlace,
    HostType,
    ObjectivePlace,
    Park,
    Patience,
    Publish,
)
from optuna_deadline.cli.studies import load_study
from optuna_deadline.elastic import CHECKPOINTS, ElasticWorker, Result, agree, prepare
from optuna_deadline.study.terms import Terms
from optuna_deadline.worker.segment import PATIENCE

_logger = logging.getLogger("optuna_deadline")


@command
def worker(
    objective: ObjectivePlace,
    study: Annotated[str, typer.Option(help="Name of the study.")],
    storage: Storage,
    gpus: Annotated[str | None, typer.Option(help="GPUs to offer: all, or 0,1.")] = None,
    cpus: Annotated[int | None, typer.Option(help="CPU slots to offer.")] = None,
    pool: Annotated[str | None, typer.Option(help="Pool of slots; the study's own name.")] = None,
    weight: Annotated[
        float | None, typer.Option(help="The study's weight in the pool; 1 at first.")
    ] = None,
    divider: Annotated[
        str, typer.Option(help="How the pool is divided, even or market; the same for all.")
    ] = "even",
    checkpoints: CheckpointPlace = str(CHECKPOINTS),
    patience: Patience = PATIENCE,
    park: Park = 0,
    publish: Publish = None,
    across_hosts: AcrossHosts = False,
    host_type: HostType = None,
    until: Annotated[
        str | None, typer.Option(help="When this worker must be gone: 55m, or an instant.")
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for slots that are taken.")] = 0.0,
    preemption_notice: Annotated[
        str | None,
        typer.Option(help="Command or URL that says when this host is taken back."),
    ] = None,
    log: Annotated[Log, typer.Option(help="How messages are written.")] = Log.text,
) -> None:
    """Train trials of a study on this machine's slots; start as many as there are machines."""
    choose(log)
    source, offer = prepare(
        objective, gpus, cpus, weight=weight, divider=divider, patience=patience, park=park,
        until=until, checkpoints=checkpoints,
    )  # fmt: skip
    found = load_study(study, storage)
    terms = agree(found, None, None, {})
    elastic = ElasticWorker(
        found, source, terms, offer=offer, pool=pool, weight=weight, divider=divider,
        checkpoints=checkpoints, patience=patience, park=park, publish=publish,
        across_hosts=across_hosts, host_type=host_type, until=until, wait=wait,
        preemption_notice=preemption_notice,
    )  # fmt: skip
    work(elastic, log)


def work(elastic: ElasticWorker, log: Log) -> None:
    """Run a worker in sight, and say what came of it.

    Raises:
        typer.Exit: The worker was asked to leave before the study's end, or its time was over.
    """
    terms, watcher = elastic.terms, Watcher(elastic.table, elastic.terms)
    _logger.info("Working on %s, deadline %s.", terms.name, terms, extra={"study": terms.name})
    with logged(watcher) if log is Log.json else shown(watcher, console):
        result = elastic.run()
    if log is Log.json:
        print(json.dumps({"study": terms.name, **asdict(result)}, default=str), flush=True)
    else:
        print(describe(result, terms))
    if not result.settled:
        raise typer.Exit(TIME_WAS_OVER if elastic.time_was_over else INTERRUPTED)


def describe(result: Result, terms: Terms) -> str:
    """The last words of a run."""
    if not result.settled:
        return f"Left {terms.name} before its end; start the same command again to go on."
    if result.number is None:
        return f"{terms.name} ended without a value: no trial reported one, or returned one."
    state = "verified" if result.checkpoint_ok else "not saved"
    if result.checkpoint_host is not None:
        state = f"on {result.checkpoint_host}, which alone has it"
    spent = f" Spent {result.spent:.4g} of {terms.budget}." if terms.budget else ""
    step = "" if result.step is None else f", step {result.step}"
    return (
        f"{terms.name}: best value {result.value:.6g}, trial {result.number}{step}; "
        f"checkpoint {state}.{spent}\n{result.how_to_load()}"
    )
