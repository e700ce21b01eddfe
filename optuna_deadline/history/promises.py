"""What a pool can promise its studies, in words: who falls short, and what would have to give."""

from __future__ import annotations

from optuna_deadline.history.words import roughly
from optuna_deadline.policies.pool.admission import Prospect, prospects, remedy, who_loses
from optuna_deadline.policies.pool.fair_share import PoolSnapshot


def shortfalls(pool: PoolSnapshot) -> list[str]:
    """A sentence for each study that will not train what it expects to by its deadline."""
    return [_sentence(pool, prospect) for prospect in prospects(pool) if not prospect.held]


def at_joining(pool: PoolSnapshot, newcomer: int) -> list[str]:
    """A sentence for each study that falls short because another one has joined."""
    return [_sentence(pool, prospect) for prospect in who_loses(pool, newcomer)]


def _sentence(pool: PoolSnapshot, prospect: Prospect) -> str:
    assert prospect.wants is not None
    study, found = prospect.study, remedy(pool, prospect.study.study_id)
    said = (
        f"{study.name} gets {roughly(prospect.gets)} on one slot of the "
        f"{roughly(prospect.wants)} that it expects to train by its deadline: extend it by "
        f"{roughly(found.extend)}"
    )
    if found.weight is None:
        return f"{said}, or add slots; no weight would do."
    then = f"; then {' and '.join(found.losers)} would fall short" if found.losers else ""
    return f"{said}, or give it weight {found.weight:g}{then}."
