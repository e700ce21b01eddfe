"""What a worker and its study agree on before it starts."""

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

from optuna_deadline.allocation.sql.database.engine import open_table
from optuna_deadline.checkpoints.storage import library_name, place_of
from optuna_deadline.errors import DeadlineError, argument
from optuna_deadline.policies.registry import make_divider
from optuna_deadline.pruners import DeadlinePruner
from optuna_deadline.rank.fork_server import ForkServer
from optuna_deadline.rank.objective import Objective, ObjectiveSource, source_of
from optuna_deadline.study import policy_choice
from optuna_deadline.study import terms as study_terms
from optuna_deadline.study.terms import Terms
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
    """The study's terms: those asked for, its pruner's, or those that hold already.

    A reduction factor of None is the one that holds already, or the policy's own.
    """
    if not isinstance(study, Study):
        raise DeadlineError(
            f"{study!r} is not a study: pass optuna.create_study(...) or optuna.load_study(...)."
        )
    engine = open_table(study, table)
    if deadline is not None:
        if parameters.get("reduction_factor", 0) is None:
            known = study_terms.read(engine, study)
            factor = None if known is None else known.parameters.get("reduction_factor")
            factor = factor or policy_choice.own_factor(policy, parameters)
            parameters = {**parameters, "reduction_factor": factor}
        return study_terms.fix(
            engine, study, deadline,
            policy=policy, parameters=parameters, budget=budget, extend=extend,
            max_slots=check_max_slots(max_slots),
        )  # fmt: skip
    if budget is not None:
        raise DeadlineError("A budget is fixed with the deadline: pass deadline='2h' too.")
    if max_slots is not None:
        raise DeadlineError("max_slots is fixed with the deadline: pass deadline='2h' too.")
    if isinstance(study.pruner, DeadlinePruner):
        return study.pruner.terms(study)
    found = study_terms.read(engine, study)
    if found is None:
        raise DeadlineError(
            f"The study {study.study_name!r} has no deadline yet: {study_terms.fixing(study)}."
        )
    return found


def check(policy: policy_choice.PolicyLike | None, parameters: dict[str, Any]) -> None:
    """Refuse a policy or parameters that no study could have; see :func:`agree`.

    Raises:
        DeadlineError: There is no such policy, or it does not take its parameters.
    """
    if parameters.get("reduction_factor", 0) is None:
        policy_choice.own_factor(policy, parameters)
    else:
        policy_choice.make(policy, parameters)


def prepare(
    objective: Objective | ObjectiveSource | str,
    gpus: str | int | None,
    cpus: int | None,
    *,
    gpu_ids: str | Sequence[int] | None = None,
    oversubscribe: bool = False,
    weight: float | None = None,
    divider: str = "even",
    patience: float = PATIENCE,
    park: int = 0,
    until: DeadlineLike | None = None,
    checkpoints: str | Path | None = None,
    budget: Budget | None = None,
    host_type: str | None = None,
    max_slots: int | None = None,
) -> tuple[ObjectiveSource, Offer]:
    """What a worker trains and on which slots, checked before a study agrees on anything.

    Raises:
        DeadlineError: One of the arguments makes no sense, or names what is not there.
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
    """Load the objective before a study agrees on its deadline: a typo starts no clock.

    Args:
        source: The objective.
        offer: The slots that it is to train on.
        deadline: Until when it has to be loaded.
        checkpoints: Where checkpoints go: what opens a store is imported too.

    Returns:
        None where the deadline has passed, which is refused elsewhere.

    Raises:
        DeadlineError: It cannot be loaded.
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
    """The same where the study has no deadline yet, and is given one."""
    if deadline is None or not isinstance(study, Study):
        return None
    if study_terms.read(open_table(study, table), study) is not None:
        return None
    return preload(source, offer, deadline, checkpoints)


def keep_all_checkpoints(study: Study) -> None:
    """Write into the study that its checkpoints stay once it is over."""
    study.set_user_attr(_KEEP_ALL, True)


def keeps_all_checkpoints(study: Study) -> bool:
    """Whether all checkpoints of a study stay once it is over."""
    return bool(study.user_attrs.get(_KEEP_ALL, False))


def check_weight(weight: float | None) -> float | None:
    """A study's weight in its pool, if it is one.

    Raises:
        DeadlineError: It is no positive number.
    """
    if weight is not None and not (isinstance(weight, (int, float)) and 0 < weight < math.inf):
        raise DeadlineError(
            f"{argument('weight')} must be a positive number such as 2, but got {weight!r}."
        )
    return weight


def check_patience(patience: float) -> float:
    """After how long a silence a trial counts as hung, if it is a time.

    Raises:
        DeadlineError: It is no positive number.
    """
    if not (isinstance(patience, (int, float)) and patience > 0):
        raise DeadlineError(
            f"{argument('patience')} must be a positive number of seconds, but got {patience!r}."
        )
    return patience


def check_max_slots(max_slots: int | None) -> int | None:
    """The most slots that a trial may have, if it is a number of slots.

    Raises:
        DeadlineError: It is none.
    """
    whole = isinstance(max_slots, int) and not isinstance(max_slots, bool)
    if max_slots is not None and not (whole and max_slots > 0):
        raise DeadlineError(
            f"{argument('max_slots')} must be a number of slots such as 1, but got {max_slots!r}."
        )
    return max_slots


def check_park(park: int) -> int:
    """How many paused trials may wait in memory, if it is a number of trials.

    Raises:
        DeadlineError: It is none.
    """
    if not isinstance(park, int) or park < 0:
        raise DeadlineError(
            f"{argument('park')} must be a number of trials such as 2, but got {park!r}."
        )
    return park
