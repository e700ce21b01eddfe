"""Connections that die while they are in use."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from optuna_deadline.allocation.sql.database.engine import autocommit, connect


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


@pytest.mark.postgres
@pytest.mark.parametrize("default", ["repeatable read", "serializable"])
def test_transactions_read_what_is_committed_whatever_the_servers_default_is(
    postgres_url: str, default: str
) -> None:
    url = sa.make_url(postgres_url)
    plain = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with plain.connect() as connection:
        connection.exec_driver_sql(
            f"ALTER DATABASE \"{url.database}\" SET default_transaction_isolation TO '{default}'"
        )
    plain.dispose()
    engine = connect(postgres_url)
    for _ in range(2):
        with engine.begin() as connection:
            shown = connection.exec_driver_sql("SHOW transaction_isolation").scalar_one()
            assert shown == "read committed"
        with autocommit(engine) as connection:  # returns to what the engine has
            connection.execute(sa.select(1))
