"""Tables of another schema version are refused with a sentence."""

from __future__ import annotations

import optuna
import pytest
import sqlalchemy as sa

from optuna_deadline.allocation.database import schema
from optuna_deadline.allocation.database.creation import VERSION
from optuna_deadline.allocation.database.opening import connect, disconnect
from optuna_deadline.errors import SchemaMismatch


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (VERSION + 1, "upgrade optuna-deadline on this machine"),
        (VERSION - 1, "finish their studies with the version of optuna-deadline that created"),
    ],
)
def test_other_versions_are_refused(storage_url: str, number: int, sentence: str) -> None:
    optuna.create_study(storage=storage_url)
    database = connect(storage_url)
    with database.engine.begin() as connection:
        connection.execute(sa.update(schema.version).values(version=number))
    disconnect(database)
    with pytest.raises(SchemaMismatch, match=sentence):
        connect(storage_url)
