"""A study's terms: the deadline and the policy, stored by the first process.

The deadline is an instant by the database's clock, the same for every process on every host. A
process that asks for another deadline gets an error, unless it extends the stored one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from optuna.study import Study

from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.schema import POLICY_LENGTH, check_length
from optuna_deadline.allocation.database.transaction import Transaction
from optuna_deadline.errors import (
    DeadlineConflict,
    DeadlineError,
    DeadlinePassed,
    StudyGone,
    argument,
    spelled,
)
from optuna_deadline.planning.optuna_storage import open_again
from optuna_deadline.study import identity, policy_choice
from optuna_deadline.study import rows as studies
from optuna_deadline.values.budgets import Budget
from optuna_deadline.values.deadlines import (
    Deadline,
    DeadlineLike,
    format_duration,
    format_instant,
    parse_deadline,
)

_SAME_INSTANT = 1e-3
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


def fix(
    database: Database,
    study: Study,
    deadline: DeadlineLike,
    given: Given | None = None,
    *,
    plain: bool = False,
    extend: bool = False,
    elapsed: float = 0.0,
) -> Terms:
    """Store the terms of a study, or join the stored ones; several processes may call it at once.

    Args:
        database: The table's database, see
            :func:`optuna_deadline.allocation.database.opening.open_table`.
        study: The study, which must have one objective.
        deadline: The deadline; a duration counts from ``elapsed`` seconds ago.
        given: What else is asked for.
        plain: Leave the policy to the first worker, for a study that has none.
        extend: Move the stored deadline for all processes: to a later instant, or by a duration
            once it has passed. The stored deadline, or an earlier one as long as there is time,
            joins.
        elapsed: Seconds since the caller started to count.

    Raises:
        DeadlineConflict: Another deadline is stored and not moved, or something else that is
            given is stored with another value.
        DeadlineError: The deadline has passed, the policy is unknown or does not take its
            parameters, or the study has several objectives.
    """
    wanted, given = parse_deadline(deadline), given or Given()
    check_single_objective(study)
    with database.each_alone(studies.ANY_STUDY) as tx:
        row, now = identity.find_row(database, tx, study)
        began = now - elapsed
        at, known = wanted.instant(began), None if row is None else _terms(row, now)
        joins = known is not None and known.deadline > began and _held(known, wanted)
        if at <= began and not joins:
            raise passed(wanted, known)
        if row is None:
            values = {
                "name": study.study_name,
                "direction": study.direction.name.lower(),
                "started": began,
                "deadline": at,
                "duration": wanted.duration,
                **(_of_plain(given) if plain else _of_workers(given)),
            }
            identity.insert_terms(database, tx, study, values)
        stored = known or _read_again(database, tx, study)
        if not plain:
            stored = _with_policy(database, tx, study, stored, given)
        check_given(stored, given)
        moves = wanted.at is not None and not _same(stored, wanted)
        if extend and not joins and (moves or stored.deadline <= began):
            stored = _extend(database, tx, study, stored, wanted, at)
    _check_join(stored, wanted, began)
    return stored


def join(database: Database, study: Study, given: Given) -> Terms:
    """The stored terms for a worker, with a policy; the first worker of a study adds it.

    Raises:
        DeadlineConflict: Something that is given is stored with another value.
        DeadlineError: The study has no terms.
    """
    stored = read_stored(database, study)
    with database.each_alone(studies.ANY_STUDY) as tx:
        stored = _with_policy(database, tx, study, stored, given)
    check_given(stored, given)
    return stored


def _of_plain(given: Given) -> dict[str, Any]:
    return {"policy": None, "parameters": policy_choice.without_none(given.parameters)}


def _of_workers(given: Given) -> dict[str, Any]:
    """The columns of what workers ask for."""
    policy = policy_choice.name_of(given.policy)
    check_length("policy", policy, POLICY_LENGTH)
    return {
        "policy": policy,
        "parameters": policy_choice.complete(given.policy, given.parameters),
        "max_slots": given.max_slots,
        "money": None if given.budget is None else asdict(given.budget),
    }


def _with_policy(
    database: Database, tx: Transaction, study: Study, stored: Terms, given: Given
) -> Terms:
    """Add what a study lacks that its pruner began.

    Raises:
        DeadlineConflict: A parameter is stored with another value.
    """
    if stored.policy is not None:
        return stored
    check_given(stored, Given(parameters=_shared(given.parameters, stored.parameters)))
    parameters = {**given.parameters, **stored.parameters}
    columns = _of_workers(replace(given, parameters=parameters))
    studies.add_policy(tx, stored.study_id, columns)
    return _read_again(database, tx, study)


def _shared(parameters: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if name in known}


def extend(database: Database, study: Study, deadline: DeadlineLike) -> Terms:
    """Move a study's deadline to a later time for all processes.

    Args:
        database: The table's database.
        study: The study.
        deadline: The new one; a duration counts from now.

    Raises:
        DeadlineConflict: The study's deadline is later.
        DeadlineError: The study has no deadline, or the new one has passed.
    """
    wanted = parse_deadline(deadline)
    with database.each_alone(studies.ANY_STUDY) as tx:
        row, now = identity.find_row(database, tx, study)
        if row is None:
            raise DeadlineError(
                f"The study {study.study_name!r} has no deadline: {fixing(study)}."
            )
        stored, at = _terms(row, now), wanted.instant(now)
        if at <= now:
            raise passed(wanted)
        return _extend(database, tx, study, stored, wanted, at)


def read(database: Database, study: Study) -> Terms | None:
    """The current terms of a study; None if it has none."""
    with database.each_alone(studies.ANY_STUDY) as tx:
        row, now = identity.find_row(database, tx, study)
    return None if row is None else _terms(row, now)


def read_stored(database: Database, study: Study) -> Terms:
    """The same.

    Raises:
        DeadlineError: The study has none.
    """
    if (found := read(database, study)) is None:
        raise DeadlineError(
            f"The study {study.study_name!r} has no deadline yet: {fixing(study)}."
        )
    return found


def key(database: Database, study: Study) -> str:
    """The random key that distinguishes a study from others of the same name.

    Raises:
        StudyGone: The study was deleted.
    """
    with database.each_alone(studies.ANY_STUDY) as tx:
        return identity.key_of(database, tx, study)


def read_all(database: Database) -> list[tuple[Terms, bool]]:
    """The terms of all studies of a database, and whether each has ended."""
    with database.each_alone(studies.ANY_STUDY) as tx:
        rows, now = studies.select_all(tx)
    return [(_terms(row, now), row.settled is not None) for row in rows]


def end_within(database: Database, study: Study, seconds: float) -> Terms:
    """Bring a study's deadline forward for all processes; it ends as at its own deadline.

    Args:
        database: The table's database.
        study: The study.
        seconds: Seconds until the new deadline, in which running trials save and leave.

    Raises:
        DeadlineError: The study has no deadline, or it has ended.
    """
    with database.each_alone(studies.ANY_STUDY) as tx:
        row, now = identity.find_row(database, tx, study)
        if row is None:
            raise DeadlineError(
                f"The study {study.study_name!r} has no deadline, so it cannot be ended early."
            )
        if row.settled is not None or row.deadline <= now:
            raise DeadlineError(f"The study {study.study_name!r} has ended already.")
        studies.bring_forward(tx, row.study_id, now + seconds)
        return _read_again(database, tx, study)


def fixing(study: Study) -> str:
    """The advice on giving a study a deadline, for error messages."""
    return spelled(
        "pass deadline='2h' to run, or create it with DeadlinePruner(deadline='2h')",
        f"give it one with 'optuna-deadline create {study.study_name} --deadline 2h'",
    )


def check_ahead(database: Database, wanted: Deadline) -> None:
    """Check that a deadline has not passed by the database's clock.

    Raises:
        DeadlineError: It has passed.
    """
    now = database.now()
    if wanted.instant(now) <= now:
        raise passed(wanted)


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
    if stored is None or not _held(stored, wanted):
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
        f"'optuna-deadline set {stored.name} --deadline 2h'",
    )


def _read_again(database: Database, tx: Transaction, study: Study) -> Terms:
    """The terms of a study that had a row."""
    row, now = identity.find_row(database, tx, study)
    if row is None:
        raise StudyGone.named(study.study_name)
    return _terms(row, now)


def _extend(
    database: Database, tx: Transaction, study: Study, stored: Terms, wanted: Deadline, at: float
) -> Terms:
    if studies.postpone(tx, stored.study_id, at, wanted.duration):
        open_again(study)
    moved = _read_again(database, tx, study)
    if moved.deadline > at + _SAME_INSTANT and not _same(moved, wanted):
        raise DeadlineConflict(
            f"The study {stored.name!r} has the deadline {moved}, and extending moves it later "
            f"only, not to {format_instant(at)}; give a later deadline."
        )
    return moved


def _check_join(stored: Terms, wanted: Deadline, began: float) -> None:
    if not _held(stored, wanted):
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


def _same(stored: Terms, wanted: Deadline) -> bool:
    if wanted.duration is not None:
        return stored.duration is not None and abs(stored.duration - wanted.duration) < 1e-6
    assert wanted.at is not None
    return abs(stored.deadline - wanted.at) < _SAME_INSTANT


def _held(stored: Terms, wanted: Deadline) -> bool:
    """Whether the study has the deadline, or had it until it was moved."""
    before = [replace(stored, duration=given, deadline=at) for given, at in stored.earlier]
    return any(_same(terms, wanted) for terms in (stored, *before))


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


def _terms(row: studies.StudyRow, now: float) -> Terms:
    stored = {name: getattr(row, name) for name in Terms.__annotations__ if hasattr(row, name)}
    budget = None if row.money is None else Budget.from_dict(row.money)
    return Terms(**stored, read=now, budget=budget)
