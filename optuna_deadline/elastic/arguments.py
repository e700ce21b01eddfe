"""Fix the terms of a study, and load its objective, before the worker starts."""

from __future__ import annotations

import logging
import os
import time
import uuid
from dataclasses import replace
from pathlib import Path

from optuna.study import Study

from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.opening import is_of_one_thread, open_table
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.storage import library_name, place_of
from optuna_deadline.errors import DeadlineError, DeadlinePassed, UnsupportedStorage, argument
from optuna_deadline.options import WorkerOptions
from optuna_deadline.pruners import find_deadline_pruner
from optuna_deadline.rank.fork_server import ForkServer
from optuna_deadline.rank.objective import Objective, ObjectiveSource, source_of
from optuna_deadline.study import agreement
from optuna_deadline.study.terms import Given, Terms
from optuna_deadline.values.budgets import HOST_TYPE, Budget
from optuna_deadline.values.deadlines import DeadlineLike, parse_deadline
from optuna_deadline.worker.devices import Offer, make_offer, threads_of

_logger = logging.getLogger("optuna_deadline")
_KEEP_ALL = "optuna_deadline:keep_all"  # an attribute of the study


def agree(
    study: Study,
    deadline: DeadlineLike | None,
    given: Given | None = None,
    *,
    storage: str | None = None,
) -> Terms:
    """Fix the study's terms: the given ones, its pruner's, or the stored ones.

    What is not given takes the stored value, or the default. A study whose deadline has passed
    before its trials could be ended is joined, so that they are.

    Args:
        study: The study.
        deadline: The deadline; None for the stored one, or that of the study's pruner.
        given: What else is asked for.
        storage: The URL of another database for the table.

    Raises:
        DeadlineConflict: Another value is stored.
        UnsupportedStorage: Threads do not share the study's storage.
        DeadlineError: The study has no deadline, or an argument is invalid.
    """
    if not isinstance(study, Study):
        raise DeadlineError(
            f"{study!r} is not a study: pass optuna.create_study(...) or optuna.load_study(...)."
        )
    if is_of_one_thread(study):
        raise UnsupportedStorage(
            "A SQLite database in memory is another one for each thread: create the study without "
            "storage=, or with a file, as in storage='sqlite:///study.db'."
        )
    database, given = open_table(study, storage), given or Given()
    if deadline is not None:
        try:
            return agreement.fix(database, study, deadline, given)
        except DeadlinePassed:
            known = agreement.read(database, study)
            if known is None or not _is_unended(database, known):
                raise
            return known
    if (pruner := find_deadline_pruner(study.pruner)) is not None:
        pruner._terms(study)
    return agreement.join(database, study, given)


def _is_unended(database: Database, terms: Terms) -> bool:
    table = AllocationTable(database, terms.name, terms.study_id)
    return not table.orders("").settled and bool(table.trials())


def prepare(
    objective: Objective | ObjectiveSource | str,
    options: WorkerOptions,
    *,
    budget: Budget | None = None,
) -> tuple[ObjectiveSource, Offer]:
    """The objective and the slots of a worker, checked before the study's terms are fixed.

    Raises:
        DeadlineError: An argument is invalid, or names something that does not exist.
    """
    source = source_of(objective)
    if budget is not None and not (options.host_type or os.environ.get(HOST_TYPE)):
        budget.check_type(None, budget.prices)
    offer = make_offer(options.gpus, options.cpus, options.gpu_ids, options.oversubscribe)
    if options.max_slots is not None and options.max_slots > offer.size:
        _logger.warning(
            "%s is %d and there are %d slots here: it has no effect until other workers join.",
            argument("max_slots"),
            options.max_slots,
            offer.size,
        )
    return source, offer


def preload(
    source: ObjectiveSource, offer: Offer, deadline: DeadlineLike, checkpoints: str | Path
) -> ForkServer | None:
    """Load the objective before the deadline is fixed, so that an import error costs no time.

    Args:
        source: The objective.
        offer: The slots on which it will train.
        deadline: The time by which it must be loaded.
        checkpoints: The folder or URL of checkpoints; packages that open the URL are imported too.

    Returns:
        The fork server that has loaded it; None if the deadline has passed, which is refused
        elsewhere.

    Raises:
        DeadlineError: The objective cannot be loaded.
    """
    now = time.time()
    seconds = parse_deadline(deadline).instant(now) - now
    if seconds <= 0:
        return None
    library = library_name(place_of(checkpoints))
    server = ForkServer(replace(source, library=library), threads_of(offer), str(uuid.uuid4()))
    server.wait_until_ready(seconds)
    return server


def preload_for_new(
    study: Study,
    source: ObjectiveSource,
    offer: Offer,
    deadline: DeadlineLike | None,
    checkpoints: str | Path,
    *,
    storage: str | None = None,
) -> ForkServer | None:
    """Load the objective with :func:`preload` if this process fixes the study's deadline."""
    if deadline is None or not isinstance(study, Study):
        return None
    if agreement.read(open_table(study, storage), study) is not None:
        return None
    return preload(source, offer, deadline, checkpoints)


def keep_all_checkpoints(study: Study) -> None:
    """Store in the study that all its checkpoints are kept at its end."""
    study.set_user_attr(_KEEP_ALL, True)


def keeps_all_checkpoints(study: Study) -> bool:
    """Whether all checkpoints of a study are kept at its end."""
    return bool(study.user_attrs.get(_KEEP_ALL, False))


def extend(study: Study, deadline: DeadlineLike, *, storage: str | None = None) -> None:
    """Move the deadline of a study to a later time for all its processes.

    Args:
        study: The study.
        deadline: The new deadline; a duration counts from now.
        storage: The database of the allocation table, if the study's storage is not SQL.

    Raises:
        DeadlineConflict: The study's deadline is later.
        DeadlineError: The study has no deadline, or the new one has passed.
    """
    agreement.extend(open_table(study, storage), study, deadline)
    if (pruner := find_deadline_pruner(study.pruner)) is not None:
        pruner._read_again(study)
