"""A study's terms, the deadline and the policy, and what a process may ask for beside them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from optuna.study import Study

from optuna_deadline.errors import (
    DeadlineConflict,
    DeadlineError,
    DeadlinePassed,
    argument,
    spelled,
)
from optuna_deadline.study import policy_choice
from optuna_deadline.values.budgets import Budget
from optuna_deadline.values.deadlines import (
    Deadline,
    format_duration,
    format_instant,
)

SAME_INSTANT = 1e-3
_STORED = ("policy", "max_slots")  #: what :class:`Given` and :class:`Terms` share


@dataclass(frozen=True)
class Terms:
    """The terms that hold for all processes of a study.

    Attributes:
        study_id: The key of the study's rows in our tables.
        name: The study's name.
        direction: ``"minimize"`` or ``"maximize"``.
        started: When the deadline was fixed; this and the other instants are seconds since the
            epoch by the database's clock.
        deadline: The instant by which the best model is wanted.
        duration: Seconds, if the user gave a duration.
        policy: The policy's name; None until a worker joins a study that its pruner began.
        parameters: The policy's parameters.
        budget: The budget; None if slots cost nothing.
        read: When the row was read.
        max_slots: Maximum number of slots of a trial; None for no limit.
        earlier: Earlier deadlines, each as its duration, if it had one, and its instant.
    """

    study_id: int
    name: str
    direction: str
    started: float
    deadline: float
    duration: float | None
    policy: str | None
    parameters: Mapping[str, Any] = field(hash=False)
    read: float = field(compare=False)
    budget: Budget | None = None
    earlier: tuple[tuple[float | None, float], ...] = field(default=(), compare=False)
    max_slots: int | None = None

    def __str__(self) -> str:
        until = format_instant(self.deadline)
        if self.duration is None:
            return until
        return f"{format_duration(self.duration, units=4)} (until {until})"


@dataclass(frozen=True)
class Given:
    """What a process asks for besides the deadline; None stands for the stored or default value.

    Attributes:
        policy: The policy, by default the first of
            :func:`~optuna_deadline.policies.known_policies`.
        parameters: The policy's parameters; they must be valid JSON.
        budget: The budget and the price.
        max_slots: Maximum number of slots of a trial; no limit by default.
    """

    policy: policy_choice.PolicyLike | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    budget: Budget | None = None
    max_slots: int | None = None


def fixing(study: Study) -> str:
    """The advice on giving a study a deadline, for error messages."""
    return spelled(
        "pass deadline='2h' to run, or create it with DeadlinePruner(deadline='2h'), which "
        "counts from the first trial",
        f"give it one with 'optuna-deadline create {shlex.quote(study.study_name)} --deadline 2h'",
    )


def check_single_objective(study: Study) -> None:
    """Check that a study has one objective.

    Raises:
        DeadlineError: It has several, so there is no best trial.
    """
    if len(study.directions) > 1:
        raise DeadlineError(
            f"The study {study.study_name!r} has {len(study.directions)} objectives, and a "
            "deadline needs one to rank trials by; create the study with a single direction."
        )


def passed(wanted: Deadline, stored: Terms | None = None) -> DeadlineError:
    """The error for a deadline in the past, the study's own or another."""
    if stored is None or not held(stored, wanted):
        return DeadlineError(f"The deadline {wanted} has passed; give one in the future.")
    return over(stored)


def over(stored: Terms) -> DeadlineError:
    """The error for a study whose deadline has passed."""
    return DeadlinePassed(
        f"The deadline of the study {stored.name!r}, {stored}, has passed; create a new study, "
        f"or give it a later deadline with {_extending(stored)}."
    )


def too_late(stored: Terms, left: float, report: float) -> DeadlineError:
    """The error for a process that joins so late that even a first report would be too late.

    Args:
        stored: The study's terms.
        left: Seconds until the deadline.
        report: Minimum seconds that the study's trials took to a report.
    """
    return DeadlineError(
        f"{format_duration(left)} are left until the deadline of the study {stored.name!r}, and "
        f"its trials took {format_duration(report)} or more to a report: a process that begins "
        f"now comes too late; give the study a later deadline with {_extending(stored)}."
    )


def _extending(stored: Terms) -> str:
    """The advice on moving a deadline, for error messages."""
    return spelled(
        "optuna_deadline.extend(study, '2h')",
        f"'optuna-deadline set {shlex.quote(stored.name)} --deadline 2h'",
    )


def check_join(stored: Terms, wanted: Deadline, began: float) -> None:
    """Check that a process which began at an instant asks for the stored deadline.

    Raises:
        DeadlineConflict: It asks for another one.
        DeadlineError: The deadline had passed by then.
    """
    if not held(stored, wanted):
        raise DeadlineConflict(
            f"The study {stored.name!r} has the deadline {stored} and this process asks for "
            f"{wanted}; give the same one, or move it for all processes with {_extending(stored)}."
        )
    # Only if it had passed when the caller started: if it passed since, a trial must end.
    if stored.deadline <= began:
        raise passed(wanted, stored)


def _check_budget(stored: Terms, wanted: Budget | None) -> None:
    if wanted is None or wanted == stored.budget:
        return
    known = stored.budget
    has = "no budget" if known is None else f"the budget {known} at {known.rate}"
    raise DeadlineConflict(
        f"The study {stored.name!r} has {has} and this process wants {wanted} at {wanted.rate}; "
        "give the same one, or none to join."
    )


def same(stored: Terms, wanted: Deadline) -> bool:
    """Whether a deadline is the stored one."""
    if wanted.duration is not None:
        return stored.duration is not None and abs(stored.duration - wanted.duration) < 1e-6
    assert wanted.at is not None
    return abs(stored.deadline - wanted.at) < SAME_INSTANT


def held(stored: Terms, wanted: Deadline) -> bool:
    """Whether the study has the deadline, or had it until it was moved."""
    before = [replace(stored, duration=given, deadline=at) for given, at in stored.earlier]
    return any(same(terms, wanted) for terms in (stored, *before))


def check_given(stored: Terms, given: Given) -> None:
    """Check that a process asks for what is stored.

    Raises:
        DeadlineConflict: Something has another value.
    """
    _check_budget(stored, given.budget)
    policy_choice.check_values(given.parameters)
    wanted = {
        "policy": None if given.policy is None else policy_choice.name_of(given.policy),
        "max_slots": given.max_slots,
        **given.parameters,
    }
    known = stored.parameters
    if stored.policy is not None and not known.keys() >= given.parameters.keys():
        known = policy_choice.effective(stored.policy, known)
    has = {**known, **{name: getattr(stored, name) for name in _STORED}}
    asked = json.loads(json.dumps(policy_choice.without_none(wanted)))
    if other := [name for name, value in asked.items() if value != has.get(name)]:
        raise DeadlineConflict(
            f"The study {stored.name!r} has {_listed(other, has)} and this process asks for "
            f"{_listed(other, asked)}; give the same, or leave it out."
        )


def _listed(names: Iterable[str], values: Mapping[str, Any]) -> str:
    own = ("policy", "max_slots", "n_trials")  # the others are parameters of the policy
    return ", ".join(
        f"{argument(name) if name in own else name} {values.get(name)!r}" for name in names
    )
