"""Moves a study's deadline, and keeps the former one: processes that know it can still join."""

from __future__ import annotations

from typing import Any

from optuna_deadline.allocation.database.columns import content
from optuna_deadline.allocation.database.schema import study
from optuna_deadline.allocation.database.text import listed
from optuna_deadline.allocation.database.transaction import Transaction

_EARLIER = content(study.c.earlier)


def move_deadline(
    tx: Transaction, study_id: int, may: str, to: str, also: str = "", **given: Any
) -> bool:
    """Move the deadline if a condition holds; repeated if another process moves it just then.

    Args:
        tx: The transaction.
        study_id: The study.
        may: The condition.
        to: The new deadline, as an expression.
        also: Further columns to change.
        given: Parameters of these texts.
    """
    mine = f"study_id = :id AND {may}"
    given = {"id": study_id, **given}
    while True:
        row = tx.row(f"SELECT deadline, duration, earlier FROM @study WHERE {mine}", **given)
        if row is None:
            return False
        deadline, duration, earlier = row
        if tx.run(
            f"UPDATE @study SET deadline = {to}, earlier = :before{also} WHERE {mine} AND "
            "deadline = :was",
            before=listed([*_EARLIER(earlier), (duration, deadline)]), was=deadline, **given,
        ):  # fmt: skip
            return True


def move_with_clock(tx: Transaction, study_id: int, step: float, seen: float) -> bool:
    """Move the start and the ends of a study by seconds, unless another process has.

    Args:
        tx: The transaction.
        study_id: The study.
        step: By how many seconds the database's clock was set.
        seen: The deadline before.
    """
    return move_deadline(
        tx, study_id, "abs(deadline - :seen) < 0.001", "deadline + :step",
        ", started = started + :step, funds_end = funds_end + :step",
        seen=seen, step=step,
    )  # fmt: skip
