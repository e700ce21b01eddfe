"""Elastic use in one call."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

from optuna.study import Study

from optuna_deadline.elastic.arguments import (
    agree,
    keep_all_checkpoints,
    preload_for_new,
    prepare,
)
from optuna_deadline.elastic.lifecycle import when_answering
from optuna_deadline.elastic.result import Result
from optuna_deadline.elastic.worker import ElasticWorker
from optuna_deadline.errors import DeadlineError
from optuna_deadline.live.console import SafeConsole
from optuna_deadline.live.top import showing_study
from optuna_deadline.live.watcher import StudyWatcher
from optuna_deadline.options import StudyOptions, WorkerOptions
from optuna_deadline.rank.objective import Objective, stop_if_loading
from optuna_deadline.study.policy_choice import PolicyLike
from optuna_deadline.values.budgets import BudgetLike
from optuna_deadline.values.deadlines import DeadlineLike
from optuna_deadline.values.prices import PriceLike


def run(
    study: Study,
    objective: Objective | str,
    deadline: DeadlineLike | None = None,
    *,
    gpus: str | int | None = None,
    cpus: int | None = None,
    policy: PolicyLike | None = None,
    budget: BudgetLike | None = None,
    price: PriceLike | None = None,
    checkpoints: str | Path | None = None,
    n_trials: int | None = None,
    worker: WorkerOptions = WorkerOptions(),
) -> Result:
    """Tune until the deadline with trials that pause, resume and change their slots.

    Every process that calls this for the same study offers its slots and trains trials on them, on
    any host that reaches the database.

    Args:
        study: An Optuna study on SQLite, PostgreSQL or in memory.
        objective: The objective, or "train.py:objective".
        deadline: A timedelta, an aware datetime, "2h30m" or ISO 8601; None uses the study's
            deadline, or that of its :class:`~optuna_deadline.DeadlinePruner`.
        gpus: Number of GPUs to offer, or "all".
        cpus: Number of CPU slots to offer; each trains with one thread.
        policy: The policy, "adaptive_halving" by default: a name with parameters, as
            "hypersched:recharge=8"; "policy.py:Mine", which workers in other processes can load,
            too; or an object. The study stores one of the package, as ``HyperSched(recharge=8)``,
            by its name and fields. Another object with ``plan``, or a function from snapshot to
            plan, serves this process only.
        budget: The amount that may be spent, as 20 or "20usd"; the study ends when it is spent.
            The policy decides how many of the offered slots are used and paid for.
        price: The price of a slot per hour, as 0.9; or a :class:`~optuna_deadline.Price`, which
            also holds the rounding of the bill; or a mapping from host types to such prices, such
            as :func:`~optuna_deadline.values.prices.read_prices` reads from a file.
        checkpoints: Folder for checkpoints, "optuna_deadline_checkpoints" by default, or a URL
            such as "s3://bucket/folder" that all machines reach (``optuna-deadline[remote]``).
        n_trials: Maximum number of trials; None for no limit.
        worker: The other options of this worker.

    Returns:
        The best model and its checkpoint.

    Raises:
        DeadlineError: An argument is invalid or unavailable; the message says what to do.
        StudyGone: The study was deleted in the meantime.
        DatabaseGone: The worker had to leave, and the database did not answer.
        KeyboardInterrupt: Ctrl-C stopped it; its trials are saved, and the same script continues
            them, unless the study is in memory.
    """
    stop_if_loading()
    if not isinstance(worker, WorkerOptions):
        raise DeadlineError(f"worker must be WorkerOptions(...), but got {worker!r}.")
    options = worker.with_given(gpus=gpus, cpus=cpus, checkpoints=checkpoints)
    terms = StudyOptions(
        deadline=deadline, policy=policy, n_trials=n_trials, budget=budget, price=price,
        max_slots=options.max_slots, keep_all=options.keep_all,
    )  # fmt: skip
    source, offer = prepare(objective, options, budget=terms.money)
    server = preload_for_new(
        study, source, offer, deadline, options.checkpoints, storage=options.storage
    )
    with ExitStack() as failing:
        if server is not None:
            failing.callback(server.close)
        agreed = when_answering(
            lambda: agree(study, deadline, terms.given, storage=options.storage)
        )
        if options.keep_all:
            keep_all_checkpoints(study)
        elastic = when_answering(
            lambda: ElasticWorker(
                study, source, agreed, options, offer=offer, policy=policy, fork_server=server
            )
        )
        failing.pop_all()  # from here on the worker stops it
    with _progress(elastic) if options.show_progress else nullcontext():
        result = elastic.run()
    if elastic.interrupted and not result.settled:
        raise KeyboardInterrupt  # the script must not continue as if the study had ended
    return result


def _progress(elastic: ElasticWorker) -> AbstractContextManager[None]:
    watcher = StudyWatcher(elastic.table, elastic.terms)
    return showing_study(watcher, SafeConsole(stderr=True), whole=False)
