"""``optuna-deadline demo``: pause, resume and resize real trials on one machine in a minute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import optuna
import typer
from optuna.trial import TrialState
from optuna_deadline_demo import TASKS, Task

from optuna_deadline._numbers import format_count
from optuna_deadline._optuna import id_of
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.cli.app import INTERRUPTED, command, console
from optuna_deadline.cli.databases import STORAGE_VARIABLE, make_storage, without_password
from optuna_deadline.cli.worker import describe
from optuna_deadline.elastic import ElasticWorker, Result, agree, prepare
from optuna_deadline.elastic.arguments import preload
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.reader import read_history
from optuna_deadline.history.slot_usage import SlotUsage, slot_usage
from optuna_deadline.live.console import SafeConsole
from optuna_deadline.live.top import showing_study
from optuna_deadline.live.watcher import StudyWatcher
from optuna_deadline.options import StudyOptions, WorkerOptions
from optuna_deadline.planning.best_model import find_winner
from optuna_deadline.policies.registry import DEFAULT_SHARING
from optuna_deadline.rank.fork_server import ForkServer
from optuna_deadline.rank.objective import ObjectiveSource
from optuna_deadline.samplers import DeadlineSampler
from optuna_deadline.study.terms import Terms
from optuna_deadline.values.deadlines import Deadline, format_duration, parse_deadline
from optuna_deadline.worker.devices import Offer


@command
def demo(
    task: Annotated[
        str,
        typer.Option(help="; ".join(f"{name}: {TASKS[name].about}" for name in TASKS) + "."),
    ] = "digits",
    deadline: Annotated[
        str | None, typer.Option(help="How long to tune; by default 60s, or 3m for a harder task.")
    ] = None,
    cpus: Annotated[int, typer.Option(min=1, help="CPU slots of each worker.")] = 2,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes on this machine.")] = 1,
    studies: Annotated[
        int, typer.Option(min=1, help="Studies that share the slots; the first one is displayed.")
    ] = 1,
    storage: Annotated[
        str | None, typer.Option(help="URL of a database; a SQLite file in --folder by default.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Policy, as for run.")] = None,
    sharing: Annotated[
        str, typer.Option(help="How the studies share: fair or even.")
    ] = DEFAULT_SHARING,
    budget: Annotated[
        str | None, typer.Option(help="Budget, as in 0.02usd; needs --price.")
    ] = None,
    price: Annotated[str | None, typer.Option(help="Price of a slot per hour.")] = None,
    folder: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("demo-output"),
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the result to this file.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampler.")] = 0,
) -> None:
    """Tune a small network, pausing, resuming and resizing its trials."""
    _check_installed()
    if (chosen := TASKS.get(task)) is None:
        raise DeadlineError(f"There is no task {task!r}: choose {', '.join(TASKS)}.")
    wanted = parse_deadline(deadline or chosen.deadline)
    options = StudyOptions(deadline=wanted, policy=policy, budget=budget, price=price)
    offered = WorkerOptions(cpus=cpus, sharing=sharing, checkpoints=folder)
    source, offer = prepare(chosen.objective, offered, budget=options.money)
    name = f"{task}-{datetime.now():%Y%m%d-%H%M%S}"
    (folder / name).mkdir(parents=True, exist_ok=True)
    url = storage or f"sqlite:///{folder / name / 'study.db'}"
    study = _create(name, url, chosen, seed)
    rivals = [_create(f"{name}-{index}", url, chosen, seed + index) for index in range(1, studies)]
    server = _load(source, offer, wanted, folder)  # before the deadline is fixed
    with ExitStack() as failing:
        if server is not None:
            failing.callback(server.close)
        terms = agree(study, wanted, options.given)
        for rival in rivals:
            agree(rival, wanted, options.given)
        offered = replace(offered, pool=name)
        elastic = ElasticWorker(study, source, terms, offered, offer=offer, fork_server=server)
        failing.pop_all()  # from here on the worker stops it
    names = [study_.study_name for study_ in (study, *rivals)]
    others = [
        _start_worker(chosen.objective, each, offered, url, folder / name)
        for each in [name] * (workers - 1) + names[1:] * workers
    ]
    screen = console if console.is_terminal else SafeConsole()
    watcher = StudyWatcher(elastic.table, terms)
    try:
        with showing_study(watcher, screen):
            result = elastic.run()
            codes = [other.wait() for other in others]
    finally:
        for other in others:
            other.terminate()
    outcome = _outcome(elastic, study, terms, result, watcher)
    if terms.budget is not None:
        outcome |= {"budget": terms.budget.amount, "spent": result.spent}
    if rivals:
        outcome["studies"] = [_share(each, name, terms.direction) for each in (study, *rivals)]
    _print_summary(outcome, result, terms, url)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(outcome, indent=2) + "\n")
    if not result.settled:
        raise typer.Exit(INTERRUPTED)
    if any(codes):
        raise typer.Exit(1)


def _load(
    source: ObjectiveSource, offer: Offer, deadline: Deadline, folder: Path
) -> ForkServer | None:
    """Load the objective, and print how long that takes."""
    began = time.monotonic()
    print("Loading the network and its data ...", end=" ", flush=True)
    server = preload(source, offer, deadline, folder)
    print(f"{format_duration(time.monotonic() - began)}. Now the time runs.", flush=True)
    return server


def _create(name: str, url: str, task: Task, seed: int) -> optuna.Study:
    return optuna.create_study(
        study_name=name,
        storage=make_storage(url),
        direction=task.direction,
        sampler=DeadlineSampler(optuna.samplers.TPESampler(seed=seed)),
    )


def _share(study: optuna.Study, pool: str, direction: str) -> dict[str, Any]:
    """The slots that one of several studies used, and its result."""
    table = AllocationTable(open_table(study), pool, id_of(study))
    winner = find_winner(table, direction)
    had = sum(row.slots * ((row.ended or row.granted) - row.granted) for row in table.segments())
    return {
        "study": study.study_name,
        "slot_seconds": round(had, 3),
        "best_value": winner.value if winner else None,
    }


def _check_installed() -> None:
    """Name the packages to install, instead of failing in a rank."""
    from importlib.util import find_spec

    missing = [name for name in ("torch", "lightning", "sklearn") if find_spec(name) is None]
    if missing:
        raise DeadlineError(
            f"The demo needs {', '.join(missing)}: pip install 'optuna-deadline[demo]'."
        )


def _start_worker(
    objective: str, name: str, options: WorkerOptions, url: str, logs: Path
) -> subprocess.Popen[bytes]:
    program = "from optuna_deadline.cli import app; app()"
    words = ["worker", objective, "--study", name, *options.words()]
    return subprocess.Popen(
        [sys.executable, "-c", program, *words],
        env={**os.environ, STORAGE_VARIABLE: url},  # other users see the command line
        stdout=subprocess.DEVNULL,
        stderr=(logs / f"worker-{time.monotonic_ns()}.log").open("wb"),
    )


def _outcome(
    elastic: ElasticWorker,
    study: optuna.Study,
    terms: Terms,
    result: Result,
    watcher: StudyWatcher,
) -> dict[str, Any]:
    trials = study.get_trials(deepcopy=False)
    view = watcher.view()
    ended = elastic.table.now() - terms.started
    limit = terms.deadline - terms.started
    return {
        "deadline_s": round(limit, 3),
        "ended_s": round(ended, 3),
        "overshoot_s": round(ended - limit, 3),
        "trials": len(trials),
        "complete": sum(trial.state is TrialState.COMPLETE for trial in trials),
        "pruned": sum(trial.state is TrialState.PRUNED for trial in trials),
        "running_left": sum(not trial.state.is_finished() for trial in trials),
        "pauses": view.pauses,
        "resumes": view.resumes,
        "resizes": view.resizes,
        "slot_usage": asdict(slot_usage(read_history(study))),
        "best_value": result.value,
        "best_trial": result.trial_number,
        "checkpoint": str(result.checkpoint) if result.checkpoint else None,
        "checkpoint_ok": result.checkpoint_ok,
    }


def _print_summary(outcome: dict[str, Any], result: Result, terms: Terms, url: str) -> None:
    print(describe(result, terms))
    when = "before" if outcome["overshoot_s"] <= 0 else "after"
    ended = f"ended {abs(outcome['overshoot_s']):.2f} s {when} the deadline"
    counts = [
        format_count(outcome[f"{what}s"], what) for what in ("trial", "pause", "resume", "resize")
    ]
    print(f"{counts[0]}: {', '.join(counts[1:])}; {ended}.")
    print(f"slots: {SlotUsage(**outcome['slot_usage'])}")
    for share in outcome.get("studies", []):
        best = "no report" if share["best_value"] is None else f"best {share['best_value']:.4f}"
        print(f"{share['study']}: {share['slot_seconds']:.0f} slot-seconds, {best}")
    shown_url = without_password(url)
    print(f"Look at it: optuna-deadline dashboard --storage {shown_url} (optuna-dashboard inside)")
