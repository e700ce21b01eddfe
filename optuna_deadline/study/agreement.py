"""How the processes of a study agree on its terms: the first one stores them, the others join.

The deadline is an instant by the database's clock, the same for every process on every host. A
process that asks for another deadline gets an error, unless it extends the stored one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from optuna.study import Study

from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.schema import POLICY_LENGTH, check_length
from optuna_deadline.allocation.database.transaction import Transaction
from optuna_deadline.allocation.rules import began_at
from optuna_deadline.errors import DeadlineConflict, DeadlineError, StudyGone
from optuna_deadline.planning.optuna_storage import open_again
from optuna_deadline.study import identity, policy_choice
from optuna_deadline.study import rows as studies
from optuna_deadline.study.terms import (
    SAME_INSTANT,
    Given,
    Terms,
    check_given,
    check_join,
    check_single_objective,
    fixing,
    held,
    passed,
    same,
)
from optuna_deadline.values.budgets import Budget
from optuna_deadline.values.deadlines import (
    Deadline,
    DeadlineLike,
    format_instant,
    parse_deadline,
)


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
        joins = known is not None and known.deadline > began and held(known, wanted)
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
        moves = wanted.at is not None and not same(stored, wanted)
        if extend and not joins and (moves or stored.deadline <= began):
            stored = _extend(database, tx, study, stored, wanted, at)
    check_join(stored, wanted, began)
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


def check_ahead(database: Database, wanted: Deadline) -> None:
    """Check that a deadline has not passed by the database's clock.

    Raises:
        DeadlineError: It has passed.
    """
    now = database.now()
    if wanted.instant(now) <= now:
        raise passed(wanted)


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
    if moved.deadline > at + SAME_INSTANT and not same(moved, wanted):
        raise DeadlineConflict(
            f"The study {stored.name!r} has the deadline {moved}, and extending moves it later "
            f"only, not to {format_instant(at)}; give a later deadline."
        )
    return moved


def _terms(row: studies.StudyRow, now: float) -> Terms:
    stored = {name: getattr(row, name) for name in Terms.__annotations__ if hasattr(row, name)}
    budget = None if row.money is None else Budget.from_dict(row.money)
    stored["started"] = began_at(row.started, row.deadline, now)
    return Terms(**stored, read=now, budget=budget)
