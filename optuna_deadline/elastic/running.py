"""Elastic use in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

from optuna.study import Study

from optuna_deadline.elastic.arguments import (
    agree,
    check,
    keep_all_checkpoints,
    preload_for_new,
    prepare,
)
from optuna_deadline.elastic.lifecycle import when_answering
from optuna_deadline.elastic.result import Result
from optuna_deadline.elastic.worker import CHECKPOINTS, ElasticWorker
from optuna_deadline.live.console import SafeConsole
from optuna_deadline.live.top import showing_study
from optuna_deadline.live.watcher import StudyWatcher
from optuna_deadline.policies.registry import DEFAULT_DIVIDER
from optuna_deadline.rank.objective import Objective, stop_if_loading
from optuna_deadline.study import policy_choice
from optuna_deadline.values.budgets import BudgetLike, make_budget
from optuna_deadline.values.deadlines import DeadlineLike
from optuna_deadline.values.prices import PriceLike
from optuna_deadline.worker.segment import PATIENCE


def run(
    study: Study,
    objective: Objective | str,
    *,
    cpus: int | None = None,
    gpus: str | int | None = None,
    gpu_ids: str | Sequence[int] | None = None,
    oversubscribe: bool = False,
    deadline: DeadlineLike | None = None,
    policy: policy_choice.PolicyLike | None = None,
    policy_parameters: Mapping[str, Any] | None = None,
    min_resource: int | None = None,
    max_resource: int | None = None,
    reduction_factor: int | None = None,
    max_slots: int | None = None,
    extend: bool = False,
    budget: BudgetLike | None = None,
    price: PriceLike | None = None,
    pool: str | None = None,
    weight: float | None = None,
    divider: str = DEFAULT_DIVIDER,
    checkpoints: str | Path | None = None,
    patience: float = PATIENCE,
    park: int = 0,
    n_trials: int | None = None,
    keep_all: bool = False,
    table: str | None = None,
    publish: bool | None = None,
    show_progress: bool = True,
    across_hosts: bool = False,
    host_type: str | None = None,
    until: DeadlineLike | None = None,
) -> Result:
    """Tune until the deadline with trials that pause, resume and change their slots.

    Every process that calls this for the same study offers its slots and trains trials on them, on
    any host that reaches the database.

    Args:
        study: An Optuna study on SQLite, PostgreSQL or in memory.
        objective: The objective, or "train.py:objective".
        cpus: Number of CPU slots to offer; each trains with one thread.
        gpus: Number of GPUs to offer, or "all".
        gpu_ids: The indices of the GPUs to offer, as [0, 3], instead of their number.
        oversubscribe: Allow more CPU slots than cores.
        deadline: A timedelta, an aware datetime, "2h30m" or ISO 8601; None uses the study's
            deadline, or that of its :class:`~optuna_deadline.DeadlinePruner`.
        policy: The policy, "adaptive_halving" by default: a name; "policy.py:Mine", which workers
            in other processes can load, too; or an object with ``plan`` or a function from
            snapshot to plan, for this process only.
        policy_parameters: Parameters of the policy, besides the three below.
        min_resource: The first rung, in report steps; 1 by default.
        max_resource: The last step of a trial; None uses that of the objective.
        reduction_factor: A rung keeps one trial in this many; None uses the policy's value.
        max_slots: Maximum number of slots of a trial: 1 if the training cannot be distributed;
            None for no limit. The first process of a study sets it for all.
        extend: Move the study's deadline to this one: a later instant, or a duration once the
            deadline has passed.
        budget: The amount that may be spent, as 20 or "20usd"; the study ends when it is spent.
            The policy decides how many of the offered slots are used and paid for.
        price: The price of a slot per hour, as 0.9; or a :class:`~optuna_deadline.Price`, which
            also holds the rounding of the bill; or a mapping from host types to such prices, such
            as :func:`~optuna_deadline.values.prices.read_prices` reads from a file.
        pool: Name of the pool of slots, the study's name by default. Studies that name the same
            pool share the slots of each host on which both have workers.
        weight: The study's share of the pool relative to a study of weight 1, from now on; None
            keeps it (1 for a new study).
        divider: How the pool is divided while this worker leads it: "purse" for equal
            totals, or "even" for equal shares; the same for all its workers.
        checkpoints: Folder for checkpoints, "optuna_deadline_checkpoints" by default, or a URL
            such as "s3://bucket/folder" that all machines reach (``optuna-deadline[remote]``).
        patience: Seconds without a report or step after which a trial counts as hung: its ranks
            are killed, and it resumes from its checkpoint. A trial that was silent for longer
            before gets three times its longest silence.
        park: Number of paused trials that may wait in this machine's memory, so that they resume
            at once; each keeps a CUDA context on its GPU.
        n_trials: Maximum number of trials; None for no limit.
        keep_all: Keep the checkpoints of all trials at the end, not only the best one;
            ``optuna-deadline clean`` deletes them later.
        table: A database for the allocation table, if the study's storage is not SQL.
        publish: Update figures, notes and columns in optuna-dashboard; None does if it is
            installed.
        show_progress: Show the study on standard error: one live line on a terminal, else a line
            for each event.
        across_hosts: Allow gangs with slots of other hosts whose workers allow it, too, and use
            the same checkpoint folder.
        host_type: The type of this host, if prices depend on it; None uses the environment
            variable OPTUNA_DEADLINE_HOST_TYPE.
        until: The time limit of this worker, independent of the study's deadline: its trials save
            and leave before. A duration, or a time by this machine's clock.

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
    money = make_budget(budget, price)
    source, offer = prepare(
        objective, gpus, cpus, gpu_ids=gpu_ids, oversubscribe=oversubscribe,
        weight=weight, divider=divider, patience=patience, park=park,
        until=until, checkpoints=checkpoints, budget=money, host_type=host_type,
        max_slots=max_slots,
    )  # fmt: skip
    resources = {
        "min_resource": min_resource,
        "max_resource": max_resource,
        "reduction_factor": reduction_factor,
    }
    if n_trials is not None:
        resources["most_trials"] = n_trials
    parameters = policy_choice.merge(resources, policy_parameters)
    if deadline is not None:
        check(policy, parameters)
    places = checkpoints or CHECKPOINTS
    server = preload_for_new(study, source, offer, deadline, places, table=table)
    with ExitStack() as failing:
        if server is not None:
            failing.callback(server.close)
        agreed = when_answering(lambda: agree(
            study, deadline, policy, parameters,
            extend=extend, table=table, budget=money, max_slots=max_slots,
        ))  # fmt: skip
        if keep_all:
            keep_all_checkpoints(study)
        worker = when_answering(lambda: ElasticWorker(
            study, source, agreed, offer=offer, pool=pool, weight=weight, divider=divider,
            checkpoints=checkpoints, patience=patience, park=park, table=table, policy=policy,
            publish=publish, across_hosts=across_hosts, host_type=host_type, until=until,
            fork_server=server,
        ))  # fmt: skip
        failing.pop_all()  # from here on the worker stops it
    with _progress(worker) if show_progress else nullcontext():
        result = worker.run()
    if worker.interrupted and not result.settled:
        raise KeyboardInterrupt  # the script must not continue as if the study had ended
    return result


def _progress(worker: ElasticWorker) -> AbstractContextManager[None]:
    watcher = StudyWatcher(worker.table, worker.terms)
    return showing_study(watcher, SafeConsole(stderr=True), whole=False)
