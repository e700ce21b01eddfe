"""``worker`` and ``run``: commands that train a study on this machine until its deadline."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from optuna_deadline.cli.app import (
    INTERRUPTED,
    NO_VALUE,
    TIME_WAS_OVER,
    LogFormat,
    ObjectivePlace,
    Storage,
    command,
    console,
)
from optuna_deadline.cli.create import make
from optuna_deadline.cli.databases import load_study
from optuna_deadline.cli.logs import Log, logged
from optuna_deadline.cli.option_groups import Without
from optuna_deadline.cli.progress import show_wait
from optuna_deadline.elastic import ElasticWorker, Result, agree, preload, prepare
from optuna_deadline.elastic.lifecycle import when_answering
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.reader import read_history
from optuna_deadline.history.slot_usage import slot_usage
from optuna_deadline.live.top import showing_study
from optuna_deadline.live.watcher import StudyWatcher
from optuna_deadline.options import StudyOptions, WorkerOptions
from optuna_deadline.rank.fork_server import ForkServer
from optuna_deadline.samplers._named import sampler_of
from optuna_deadline.study.terms import Given, Terms
from optuna_deadline.worker.devices import present_gpus

_logger = logging.getLogger("optuna_deadline")


@command
def worker(
    objective: ObjectivePlace,
    study: Annotated[str, typer.Option(help="Name of the study.")],
    storage: Storage,
    options: Annotated[WorkerOptions, Without(["keep_all"])],
    log: LogFormat = Log.text,
) -> None:
    """Train trials of a study on this machine; start one worker on each machine."""
    source, offer = prepare(objective, options)

    def start() -> ElasticWorker:
        found = load_study(study, storage)
        found.sampler = sampler_of(found)
        terms = agree(found, None, Given(max_slots=options.max_slots))
        return ElasticWorker(found, source, terms, options, offer=offer)

    work(when_answering(start, options.slot_timeout), log)


def work(elastic: ElasticWorker, log: Log) -> Result:
    """Run a worker with a live view, and print the result.

    Raises:
        typer.Exit: The worker was asked to stop before the study's end, or its time limit was
            reached.
    """
    terms, watcher = elastic.terms, StudyWatcher(elastic.table, elastic.terms)
    _logger.info(
        "Working on %s, which %s its value; deadline %s.",
        terms.name,
        f"{terms.direction}s",
        terms,
        extra={"study": terms.name},
    )
    with logged(watcher) if log is Log.json else showing_study(watcher, console):
        result = elastic.run()
    if log is Log.json:
        print(json.dumps({"study": terms.name, **asdict(result)}, default=str), flush=True)
    else:
        print(describe(result, terms))
        if result.settled:
            print(f"slots: {slot_usage(read_history(elastic.study))}")
    if not result.settled:
        raise typer.Exit(TIME_WAS_OVER if elastic.reached_time_limit else INTERRUPTED)
    return result


def describe(result: Result, terms: Terms) -> str:
    """The result of a run, in words."""
    if not result.settled:
        return f"Left {terms.name} before its end; start the same command again to go on."
    if result.trial_number is None:
        return f"{terms.name} ended without a value: no trial reported one, or returned one."
    state = "verified" if result.checkpoint_ok else "not saved"
    if result.checkpoint_host is not None:
        state = f"on {result.checkpoint_host}, which alone has it"
    spent = f" Spent {result.spent:.4g} of {terms.budget}." if terms.budget else ""
    step = "" if result.step is None else f", step {result.step}"
    differs = result.why_best_differs()
    return (
        f"{terms.name}: best value {result.value:.6g}, trial {result.trial_number}{step}; "
        f"checkpoint {state}.{spent}\n"
        + (f"{differs}\n" if differs else "")
        + result.how_to_load()
    )


_STORAGE = "sqlite:///study.db"
#: Options of workers that join a study on other machines or share a pool, and of the study.
_OF_POOLS = Without(
    ["pool", "weight", "sharing", "multi_node", "max_time", "slot_timeout", "preemption_notice",
     "max_slots", "keep_all"]
)  # fmt: skip


@command
def run(
    objective: ObjectivePlace,
    terms: StudyOptions,
    options: Annotated[WorkerOptions, _OF_POOLS],
    study: Annotated[
        str | None,
        typer.Option(help="Name of the study; by default that of the objective's file or module."),
    ] = None,
    storage: Storage = _STORAGE,
    log: LogFormat = Log.text,
) -> None:
    """Create a study and train it on this machine until the deadline.

    The same command continues the study until its deadline. Workers on other machines can join.
    """
    if options.gpus is None and options.gpu_ids is None and options.cpus is None:
        if not present_gpus():
            raise DeadlineError(
                "This machine has no GPU: give a number of CPU slots, as in --cpus 2."
            )
        options = replace(options, gpus="all")
    options = replace(options, max_slots=terms.max_slots)
    source, offer = prepare(objective, options, budget=terms.money)
    server: ForkServer | None = None

    def load() -> None:
        nonlocal server
        assert terms.deadline is not None
        with show_wait("Loading the objective"):
            server = preload(source, offer, terms.deadline, options.checkpoints)

    made, agreed = make(study or _name(objective), storage, terms, before=load)
    elastic = ElasticWorker(made, source, agreed, options, offer=offer, fork_server=server)
    if work(elastic, log).trial_number is None:
        raise typer.Exit(NO_VALUE)


def _name(objective: str) -> str:
    """The name of the objective's file or module, as a study's name."""
    where = objective.rpartition(":")[0]
    return Path(where).stem if where.endswith(".py") else where.rpartition(".")[2]
