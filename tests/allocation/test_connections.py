"""Connections that die while they are in use."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from optuna_deadline.allocation.engine import autocommit, connect


@pytest.mark.postgres
def test_a_session_that_ends_after_the_last_answer_costs_nothing(postgres_url: str) -> None:
    engine = connect(postgres_url)
    killer = sa.create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    for _ in range(20):  # more than the pool has places
        with autocommit(engine) as connection:
            connection.execute(sa.select(1))
        with autocommit(engine) as connection:  # undoing asks the server now
            pid = connection.execute(sa.select(sa.func.pg_backend_pid())).scalar_one()
            with killer.connect() as other:
                other.execute(sa.select(sa.func.pg_terminate_backend(pid, 5000)))
    with autocommit(engine) as connection:
        assert connection.execute(sa.select(1)).scalar_one() == 1
    killer.dispose()
