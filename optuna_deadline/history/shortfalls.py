"""Studies of a pool that will miss their deadlines, as sentences with a remedy each."""

from __future__ import annotations

from optuna_deadline.policies.pool.admission import (
    StudyProspect,
    losing_studies,
    prospects,
    remedy,
)
from optuna_deadline.policies.pool.fair_share import Divider, PoolSnapshot
from optuna_deadline.values.deadlines import format_duration


def shortfalls(pool: PoolSnapshot, divider: Divider) -> list[str]:
    """A sentence for each study that will not train as much as it needs by its deadline."""
    found = prospects(pool, divider)
    return [_sentence(pool, prospect, divider) for prospect in found if not prospect.is_met]


def shortfalls_by_joining(pool: PoolSnapshot, newcomer: int, divider: Divider) -> list[str]:
    """A sentence for each study that falls short because another one has joined."""
    losing = losing_studies(pool, newcomer, divider)
    return [_sentence(pool, prospect, divider) for prospect in losing]


def _sentence(pool: PoolSnapshot, prospect: StudyProspect, divider: Divider) -> str:
    assert prospect.needed is not None
    study, found = prospect.study, remedy(pool, prospect.study.study_id, divider)
    advice = (
        f"{study.name} gets {format_duration(prospect.expected)} on one slot of the "
        f"{format_duration(prospect.needed)} that it expects to train by its deadline: extend it "
        f"by {format_duration(found.extend)}"
    )
    if found.weight is None:
        return f"{advice}, or add slots; no weight is enough."
    then = f"; then {' and '.join(found.losers)} would miss theirs" if found.losers else ""
    return f"{advice}, or give it weight {found.weight:g}{then}."
