"""``worker`` and ``run``: commands that train a study on this machine until its deadline."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.progress import Progress

from optuna_deadline.cli.app import (
    INTERRUPTED,
    NO_VALUE,
    TIME_WAS_OVER,
    AcrossHosts,
    CheckpointPlace,
    Cpus,
    Deadline,
    Earlier,
    GpuIds,
    Gpus,
    HostType,
    KeepAll,
    MaxResource,
    MaxSlots,
    MinResource,
    Money,
    ObjectivePlace,
    Oversubscribe,
    Park,
    Patience,
    PolicyName,
    PriceFile,
    Publish,
    ReductionFactor,
    SamplerName,
    SamplerSettings,
    Settings,
    SlotPrice,
    Storage,
    Trials,
    command,
    console,
)
from optuna_deadline.cli.create import WhichWay, make, price_given
from optuna_deadline.cli.databases import load_study
from optuna_deadline.cli.logs import Log, choose, logged
from optuna_deadline.elastic import CHECKPOINTS, ElasticWorker, Result, agree, preload, prepare
from optuna_deadline.elastic.lifecycle import when_answering
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.reader import read_history
from optuna_deadline.history.slot_usage import slot_usage
from optuna_deadline.live.top import showing_study
from optuna_deadline.live.watcher import StudyWatcher
from optuna_deadline.policies.registry import DEFAULT_DIVIDER
from optuna_deadline.rank.fork_server import ForkServer
from optuna_deadline.study.terms import Terms
from optuna_deadline.values.budgets import make_budget
from optuna_deadline.worker.devices import present_gpus
from optuna_deadline.worker.segment import PATIENCE

_logger = logging.getLogger("optuna_deadline")


@command
def worker(
    objective: ObjectivePlace,
    study: Annotated[str, typer.Option(help="Name of the study.")],
    storage: Storage,
    gpus: Gpus = None,
    gpu_ids: GpuIds = None,
    cpus: Cpus = None,
    oversubscribe: Oversubscribe = False,
    pool: Annotated[
        str | None, typer.Option(help="Pool of slots; by default the study's name.")
    ] = None,
    weight: Annotated[
        float | None, typer.Option(help="Weight of the study in the pool; 1 by default.")
    ] = None,
    divider: Annotated[
        str,
        typer.Option(help="How the pool is divided: purse or even; the same for all workers."),
    ] = DEFAULT_DIVIDER,
    checkpoints: CheckpointPlace = str(CHECKPOINTS),
    patience: Patience = PATIENCE,
    park: Park = 0,
    publish: Publish = None,
    across_hosts: AcrossHosts = False,
    host_type: HostType = None,
    until: Annotated[
        str | None,
        typer.Option(help="When this worker must have exited: 55m from now, or a time."),
    ] = None,
    wait: Annotated[
        float, typer.Option(help="Seconds to wait for slots in use or for the database.")
    ] = 0.0,
    preemption_notice: Annotated[
        str | None,
        typer.Option(help="Command or URL that announces the preemption of this host."),
    ] = None,
    log: Annotated[Log, typer.Option(help="Format of messages.")] = Log.text,
) -> None:
    """Train trials of a study on this machine; start one worker on each machine."""
    choose(log)
    source, offer = prepare(
        objective, gpus, cpus, gpu_ids=gpu_ids, oversubscribe=oversubscribe,
        weight=weight, divider=divider, patience=patience, park=park,
        until=until, checkpoints=checkpoints,
    )  # fmt: skip

    def start() -> ElasticWorker:
        found = load_study(study, storage)
        return ElasticWorker(
            found, source, agree(found, None, None, {}), offer=offer, pool=pool, weight=weight,
            divider=divider, checkpoints=checkpoints, patience=patience, park=park,
            publish=publish, across_hosts=across_hosts, host_type=host_type, until=until,
            wait=wait, preemption_notice=preemption_notice,
        )  # fmt: skip

    work(when_answering(start, wait), log)


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


@command
def run(
    objective: ObjectivePlace,
    deadline: Deadline,
    study: Annotated[
        str | None,
        typer.Option(help="Name of the study; by default that of the objective's file or module."),
    ] = None,
    storage: Storage = _STORAGE,
    direction: WhichWay = None,
    gpus: Gpus = None,
    gpu_ids: GpuIds = None,
    cpus: Cpus = None,
    oversubscribe: Oversubscribe = False,
    policy: PolicyName = None,
    settings: Settings = None,
    min_resource: MinResource = None,
    max_resource: MaxResource = None,
    reduction_factor: ReductionFactor = None,
    max_slots: MaxSlots = None,
    budget: Money = None,
    price: SlotPrice = None,
    prices: PriceFile = None,
    earlier: Earlier = None,
    sampler: SamplerName = None,
    sampler_set: SamplerSettings = None,
    n_trials: Trials = None,
    keep_all: KeepAll = False,
    host_type: HostType = None,
    checkpoints: CheckpointPlace = str(CHECKPOINTS),
    patience: Patience = PATIENCE,
    park: Park = 0,
    publish: Publish = None,
    log: Annotated[Log, typer.Option(help="Format of messages.")] = Log.text,
) -> None:
    """Create a study and train it on this machine until the deadline.

    The same command continues the study until its deadline. Workers on other machines can join.
    """
    choose(log)
    if gpus is None and gpu_ids is None and cpus is None:
        if not present_gpus():
            raise DeadlineError(
                "This machine has no GPU: give a number of CPU slots, as in --cpus 2."
            )
        gpus = "all"
    money = make_budget(budget, price_given(price, prices))
    source, offer = prepare(
        objective, gpus, cpus, gpu_ids=gpu_ids, oversubscribe=oversubscribe,
        patience=patience, park=park, checkpoints=checkpoints,
        budget=money, host_type=host_type, max_slots=max_slots,
    )  # fmt: skip
    server: ForkServer | None = None

    def load() -> None:
        nonlocal server
        with show_wait("Loading the objective"):
            server = preload(source, offer, deadline, checkpoints)

    made, terms = make(
        study or _name(objective), storage, deadline, direction, policy, settings, min_resource,
        max_resource, reduction_factor, money, earlier, max_slots=max_slots, sampler=sampler,
        sampler_settings=sampler_set, n_trials=n_trials, keep_all=keep_all, before=load,
    )  # fmt: skip
    worker = ElasticWorker(
        made, source, terms, offer=offer, checkpoints=checkpoints, patience=patience, park=park,
        publish=publish, host_type=host_type, fork_server=server,
    )  # fmt: skip
    if work(worker, log).trial_number is None:
        raise typer.Exit(NO_VALUE)


def _name(objective: str) -> str:
    """The name of the objective's file or module, as a study's name."""
    where = objective.rpartition(":")[0]
    return Path(where).stem if where.endswith(".py") else where.rpartition(".")[2]


T = TypeVar("T")

_QUIET = 2.0  # seconds


def show_when_slow(items: Iterable[T], words: str, total: int) -> Iterator[T]:
    """Yield items as they come, with a progress bar after two seconds on a terminal.

    Args:
        items: The items.
        words: A description of the work.
        total: The maximum number of items.
    """
    began = time.monotonic()
    progress: Progress | None = None
    with ExitStack() as stack:
        for done, item in enumerate(items, 1):
            if progress is None and console.is_terminal and time.monotonic() - began > _QUIET:
                progress = stack.enter_context(Progress(console=console, transient=True))
                task = progress.add_task(words, total=total)
            if progress is not None:
                progress.update(task, completed=done)
            yield item


@contextmanager
def show_wait(words: str) -> Iterator[None]:
    """Show a description of the work after two seconds on a terminal.

    Args:
        words: The description.
    """
    status = console.status(words)
    late = threading.Timer(_QUIET, status.start)
    late.daemon = True
    if console.is_terminal:
        late.start()
    try:
        yield
    finally:
        late.cancel()
        if late.ident is not None:
            late.join()  # it may be about to start
        status.stop()
