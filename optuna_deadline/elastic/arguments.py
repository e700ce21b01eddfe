"""Check the arguments of a worker, and fix the terms of its study, before the worker starts."""

from __future__ import annotations

import logging
import math
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from optuna.study import Study

from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.storage import library_name, place_of
from optuna_deadline.errors import DeadlineError, DeadlinePassed, argument
from optuna_deadline.policies.registry import DEFAULT_DIVIDER, make_divider
from optuna_deadline.pruners import find_deadline_pruner
from optuna_deadline.rank.fork_server import ForkServer
from optuna_deadline.rank.objective import Objective, ObjectiveSource, source_of
from optuna_deadline.study import policy_choice
from optuna_deadline.study import terms as study_terms
from optuna_deadline.study.terms import Given, Terms
from optuna_deadline.values.budgets import HOST_TYPE, Budget
from optuna_deadline.values.deadlines import DeadlineLike, parse_deadline
from optuna_deadline.worker.devices import Offer, make_offer, threads_of
from optuna_deadline.worker.segment import PATIENCE

_logger = logging.getLogger("optuna_deadline")
_KEEP_ALL = "optuna_deadline:keep_all"  # an attribute of the study


def agree(
    study: Study,
    deadline: DeadlineLike | None,
    policy: policy_choice.PolicyLike | None,
    parameters: dict[str, Any],
    *,
    extend: bool = False,
    table: str | None = None,
    budget: Budget | None = None,
    max_slots: int | None = None,
) -> Terms:
    """Fix the study's terms: the given ones, its pruner's, or the stored ones.

    Arguments and parameters that are None take the stored values, or defaults. A study whose
    deadline has passed before its trials could be ended is joined, so that they are.

    Raises:
        DeadlineConflict: Another value is stored.
        DeadlineError: The study has no deadline, or an argument is invalid.
    """
    if not isinstance(study, Study):
        raise DeadlineError(
            f"{study!r} is not a study: pass optuna.create_study(...) or optuna.load_study(...)."
        )
    database = open_table(study, table)
    given = Given(policy, parameters, budget, check_max_slots(max_slots))
    if deadline is not None:
        try:
            return study_terms.fix(database, study, deadline, given, extend=extend)
        except DeadlinePassed:
            known = study_terms.read(database, study)
            if known is None or not _is_unended(database, known):
                raise
            return known
    pruner = find_deadline_pruner(study.pruner)
    stored = study_terms.read_stored
    found = stored(database, study) if pruner is None else pruner.terms(study, given)
    study_terms.check_given(found, given)
    return found


def _is_unended(database: Database, terms: Terms) -> bool:
    table = AllocationTable(database, terms.name, terms.study_id)
    return not table.orders("").settled and bool(table.trials())


def check(policy: policy_choice.PolicyLike | None, parameters: dict[str, Any]) -> None:
    """Check a policy and its parameters; see :func:`agree`.

    Raises:
        DeadlineError: The policy does not exist, or it does not accept the parameters.
    """
    policy_choice.complete(policy, parameters)


def prepare(
    objective: Objective | ObjectiveSource | str,
    gpus: str | int | None,
    cpus: int | None,
    *,
    gpu_ids: str | Sequence[int] | None = None,
    oversubscribe: bool = False,
    weight: float | None = None,
    divider: str = DEFAULT_DIVIDER,
    patience: float = PATIENCE,
    park: int = 0,
    until: DeadlineLike | None = None,
    checkpoints: str | Path | None = None,
    budget: Budget | None = None,
    host_type: str | None = None,
    max_slots: int | None = None,
) -> tuple[ObjectiveSource, Offer]:
    """The objective and the slots of a worker, checked before the study's terms are fixed.

    Raises:
        DeadlineError: An argument is invalid, or names something that does not exist.
    """
    source = source_of(objective)
    check_weight(weight)
    check_patience(patience)
    check_park(park)
    check_max_slots(max_slots)
    make_divider(divider)
    if until is not None:
        parse_deadline(until)
    if checkpoints is not None:
        place_of(checkpoints)
    if budget is not None and not (host_type or os.environ.get(HOST_TYPE)):
        budget.check_type(None, budget.prices)
    offer = make_offer(gpus, cpus, gpu_ids, oversubscribe)
    if max_slots is not None and max_slots > offer.size:
        _logger.warning(
            "%s is %d and there are %d slots here: it has no effect until other workers join.",
            argument("max_slots"),
            max_slots,
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
    table: str | None = None,
) -> ForkServer | None:
    """Load the objective with :func:`preload` if this process fixes the study's deadline."""
    if deadline is None or not isinstance(study, Study):
        return None
    if study_terms.read(open_table(study, table), study) is not None:
        return None
    return preload(source, offer, deadline, checkpoints)


def keep_all_checkpoints(study: Study) -> None:
    """Store in the study that all its checkpoints are kept at its end."""
    study.set_user_attr(_KEEP_ALL, True)


def keeps_all_checkpoints(study: Study) -> bool:
    """Whether all checkpoints of a study are kept at its end."""
    return bool(study.user_attrs.get(_KEEP_ALL, False))


def check_weight(weight: float | None) -> float | None:
    """Check a study's weight in its pool.

    Raises:
        DeadlineError: It is not a positive number.
    """
    if weight is not None and not (isinstance(weight, (int, float)) and 0 < weight < math.inf):
        raise DeadlineError(
            f"{argument('weight')} must be a positive number such as 2, but got {weight!r}."
        )
    return weight


def check_patience(patience: float) -> float:
    """Check the seconds of silence after which a trial counts as hung.

    Raises:
        DeadlineError: It is not a positive number.
    """
    if not (isinstance(patience, (int, float)) and patience > 0):
        raise DeadlineError(
            f"{argument('patience')} must be a positive number of seconds, but got {patience!r}."
        )
    return patience


def check_max_slots(max_slots: int | None) -> int | None:
    """Check the maximum number of slots of a trial.

    Raises:
        DeadlineError: It is not a number of slots.
    """
    whole = isinstance(max_slots, int) and not isinstance(max_slots, bool)
    if max_slots is not None and not (whole and max_slots > 0):
        raise DeadlineError(
            f"{argument('max_slots')} must be a number of slots such as 1, but got {max_slots!r}."
        )
    return max_slots


def check_park(park: int) -> int:
    """Check the number of paused trials that may wait in memory.

    Raises:
        DeadlineError: It is not a number of trials.
    """
    if not isinstance(park, int) or park < 0:
        raise DeadlineError(
            f"{argument('park')} must be a number of trials such as 2, but got {park!r}."
        )
    return park
