"""A study's terms: the deadline and the policy, stored by the first process.

The deadline is an instant by the database's clock, the same for every process on every host. A
process that asks for another deadline gets an error, unless it extends the stored one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from optuna.study import Study

from optuna_deadline.allocation.sql import identity, studies
from optuna_deadline.allocation.sql.database.engine import autocommit
from optuna_deadline.allocation.sql.database.schema import POLICY_LENGTH, check_length
from optuna_deadline.allocation.sql.database.transaction import database_now
from optuna_deadline.errors import (
    DeadlineConflict,
    DeadlineError,
    DeadlinePassed,
    StudyGone,
    spelled,
)
from optuna_deadline.study import policy_choice
from optuna_deadline.values.budgets import Budget
from optuna_deadline.values.deadlines import (
    Deadline,
    DeadlineLike,
    format_duration,
    format_instant,
    parse_deadline,
)

_logger = logging.getLogger(__name__)
_SAME_INSTANT = 1e-3


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
        policy: The policy's name.
        parameters: The policy's parameters.
        budget: The budget; None if slots cost nothing.
        read: When the row was read.
        max_slots: Maximum number of slots of a trial; None for no limit.
        earlier: Earlier deadlines, each as its duration, if it had one, and its instant.
        rule: How ``study.optimize`` prunes: "measured" or "hypersched".
    """

    study_id: int
    name: str
    direction: str
    started: float
    deadline: float
    duration: float | None
    policy: str
    parameters: Mapping[str, Any] = field(hash=False)
    read: float = field(compare=False)
    budget: Budget | None = None
    earlier: tuple[tuple[float | None, float], ...] = field(default=(), compare=False)
    max_slots: int | None = None
    rule: str = "hypersched"

    def __str__(self) -> str:
        until = format_instant(self.deadline)
        if self.duration is None:
            return until
        return f"{format_duration(self.duration, units=4)} (until {until})"


def fix(
    engine: sa.Engine,
    study: Study,
    deadline: DeadlineLike,
    *,
    policy: policy_choice.PolicyLike | None = None,
    parameters: Mapping[str, Any] | None = None,
    budget: Budget | None = None,
    max_slots: int | None = None,
    rule: str = "measured",
    extend: bool = False,
    elapsed: float = 0.0,
) -> Terms:
    """Store the terms of a study, or join the stored ones; several processes may call it at once.

    A process that joins uses the stored policy, parameters, rule and maximum number of slots,
    whatever it gives.

    Args:
        engine: The table's engine, see
            :func:`optuna_deadline.allocation.sql.database.engine.open_table`.
        study: The study, which must have one objective.
        deadline: The deadline; a duration counts from ``elapsed`` seconds ago.
        policy: The policy, by default the first of
            :func:`~optuna_deadline.policies.known_policies`.
        parameters: The policy's parameters; they must be valid JSON.
        budget: The budget and the price; None joins the stored ones.
        max_slots: Maximum number of slots of a trial; None for no limit.
        rule: The rule by which ``study.optimize`` prunes.
        extend: Move the stored deadline to a later instant for all processes, also after it
            passed. The stored deadline, or an earlier one as long as there is time, joins.
        elapsed: Seconds since the caller started to count.

    Raises:
        DeadlineConflict: Another deadline is stored and ``extend`` is not given, or it is later;
            or another budget is stored.
        DeadlineError: The deadline has passed, the policy is unknown or does not take its
            parameters, or the study has several objectives.
    """
    wanted = parse_deadline(deadline)
    check_length("policy", policy_choice.name_of(policy), POLICY_LENGTH)
    policy_choice.make(policy, parameters or {})  # raises on invalid parameters
    check_single_objective(study)
    with autocommit(engine) as connection:
        row, now = identity.find_row(connection, study)
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
                "policy": policy_choice.name_of(policy),
                "parameters": dict(parameters or {}),
                "max_slots": max_slots,
                "rule": rule,
                "money": None if budget is None else asdict(budget),
            }
            identity.insert_terms(connection, study, values)
        stored = known or _read_again(connection, study)
        _check_budget(stored, budget)
        if extend and not joins and (not _same(stored, wanted) or stored.deadline <= began):
            stored = _extend(connection, study, stored, wanted, at)
    _check_join(stored, wanted, began)
    _warn_of_ignored(
        stored,
        policy=None if policy is None else policy_choice.name_of(policy),
        parameters=None if parameters is None else dict(parameters),
        max_slots=max_slots,
    )
    return stored


def extend(engine: sa.Engine, study: Study, deadline: DeadlineLike) -> Terms:
    """Move a study's deadline to a later time for all processes.

    Args:
        engine: The table's engine.
        study: The study.
        deadline: The new one; a duration counts from now.

    Raises:
        DeadlineConflict: The study's deadline is later.
        DeadlineError: The study has no deadline, or the new one has passed.
    """
    wanted = parse_deadline(deadline)
    with autocommit(engine) as connection:
        row, now = identity.find_row(connection, study)
        if row is None:
            raise DeadlineError(
                f"The study {study.study_name!r} has no deadline: {fixing(study)}."
            )
        stored, at = _terms(row, now), wanted.instant(now)
        if at <= now:
            raise passed(wanted)
        return _extend(connection, study, stored, wanted, at)


def read(engine: sa.Engine, study: Study) -> Terms | None:
    """The current terms of a study; None if it has none."""
    with autocommit(engine) as connection:
        row, now = identity.find_row(connection, study)
    return None if row is None else _terms(row, now)


def key(engine: sa.Engine, study: Study) -> str:
    """The random key that distinguishes a study from others of the same name.

    Raises:
        StudyGone: The study was deleted.
    """
    with autocommit(engine) as connection:
        return identity.key_of(connection, study)


def read_all(engine: sa.Engine) -> list[tuple[Terms, bool]]:
    """The terms of all studies of a database, and whether each has ended."""
    with autocommit(engine) as connection:
        rows, now = studies.select_all(connection)
    return [(_terms(row, now), row.settled is not None) for row in rows]


def end_within(engine: sa.Engine, study: Study, seconds: float) -> Terms:
    """Bring a study's deadline forward for all processes; it ends as at its own deadline.

    Args:
        engine: The table's engine.
        study: The study.
        seconds: Seconds until the new deadline, in which running trials save and leave.

    Raises:
        DeadlineError: The study has no deadline, or it has ended.
    """
    with autocommit(engine) as connection:
        row, now = identity.find_row(connection, study)
        if row is None:
            raise DeadlineError(
                f"The study {study.study_name!r} has no deadline, so it cannot be ended early."
            )
        if row.settled is not None or row.deadline <= now:
            raise DeadlineError(f"The study {study.study_name!r} has ended already.")
        studies.bring_forward(connection, row.study_id, now + seconds)
        return _read_again(connection, study)


def fixing(study: Study) -> str:
    """How to give a study a deadline, for error messages."""
    return spelled(
        "pass deadline='2h' to run, or create it with DeadlinePruner(deadline='2h')",
        f"give it one with 'optuna-deadline create {study.study_name} --deadline 2h'",
    )


def check_ahead(engine: sa.Engine, wanted: Deadline) -> None:
    """Check that a deadline has not passed by the database's clock.

    Raises:
        DeadlineError: It has passed.
    """
    with autocommit(engine) as connection:
        now = float(connection.execute(sa.select(database_now())).scalar_one())
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
    """How to move a deadline, for error messages."""
    return spelled("extend=True", f"'optuna-deadline extend {stored.name} --deadline 2h'")


def _read_again(connection: sa.Connection, study: Study) -> Terms:
    """The terms of a study that had a row."""
    row, now = identity.find_row(connection, study)
    if row is None:
        raise StudyGone.named(study.study_name)
    return _terms(row, now)


def _extend(
    connection: sa.Connection, study: Study, stored: Terms, wanted: Deadline, at: float
) -> Terms:
    studies.postpone(connection, stored.study_id, at, wanted.duration)
    moved = _read_again(connection, study)
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


def _warn_of_ignored(stored: Terms, **given: object) -> None:
    for name, wanted in given.items():
        has = getattr(stored, name)
        if wanted is not None and wanted != has:
            _logger.warning(
                "The study %r has %s=%r, which its first process chose, not %r.",
                stored.name,
                name,
                has,
                wanted,
            )


def _terms(row: sa.Row[Any], now: float) -> Terms:
    stored = {name: row._mapping[name] for name in Terms.__annotations__ if name in row._mapping}
    budget = None if row.money is None else Budget.from_dict(row.money)
    return Terms(**stored, read=now, budget=budget)
