"""The schema's version and the numbered steps that lead to it."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from optuna_deadline.allocation import schema
from optuna_deadline.allocation.bounds import begin_bounded
from optuna_deadline.errors import SchemaMismatch

_ADVISORY_LOCK = 0x0D_EAD_11E
_PATIENCE = 60.0  # seconds: an index on a grown table takes its time


def migrate(engine: sa.Engine) -> None:
    """Bring the tables up to date; several processes may call it at once.

    Raises:
        SchemaMismatch: A newer version of the package wrote the tables.
    """
    with engine.begin() as connection:
        begin_bounded(connection, statement=_PATIENCE)
        # SQLite's BEGIN IMMEDIATE is the same lock.
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
        found = version(connection)
        if found > len(MIGRATIONS):
            raise SchemaMismatch(
                f"The tables have schema version {found}, this package knows {len(MIGRATIONS)}: "
                "upgrade optuna-deadline on this machine."
            )
        for number, step in enumerate(MIGRATIONS[found:], start=found + 1):
            step(connection)
            connection.execute(sa.delete(schema.version))
            connection.execute(sa.insert(schema.version).values(id=1, version=number))


def version(connection: sa.Connection) -> int:
    """The schema version of the tables in the database, 0 where there are none."""
    if not sa.inspect(connection).has_table(schema.version.name):
        return 0
    return int(connection.execute(sa.select(schema.version.c.version)).scalar() or 0)


def _create_tables(connection: sa.Connection) -> None:
    schema.metadata.create_all(connection)


def _follow_deleted_studies(connection: sa.Connection) -> None:
    """``optuna.delete_study`` takes our rows along.

    PostgreSQL cascades. On SQLite Optuna's connections do not enforce foreign keys, so triggers
    do the same for whoever deletes.
    """
    if not sa.inspect(connection).has_table("studies"):
        return  # a database of the table's own, named by `table=`
    study = schema.study.name
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(
            f"ALTER TABLE {study} ADD CONSTRAINT {study}_of_optuna FOREIGN KEY (study_id) "
            "REFERENCES studies (study_id) ON DELETE CASCADE"
        )
        return
    children = [
        table.name
        for table in schema.metadata.sorted_tables
        if table is not schema.study and "study_id" in table.c and table is not schema.slot
    ]
    deletes = "".join(
        f"DELETE FROM {name} WHERE study_id = OLD.study_id; " for name in (*children, study)
    )
    connection.exec_driver_sql(
        f"CREATE TRIGGER {study}_follows AFTER DELETE ON studies BEGIN {deletes}END"
    )


def _index_what_grows(connection: sa.Connection) -> None:
    """What is asked on a loop is found by an index, however long the studies."""
    for index in schema.SINCE_3:
        index.create(connection, checkfirst=True)  # fresh tables have them from the start


def _let_slots_cost_money(connection: sa.Connection) -> None:
    """A study may have a budget, and pays for as many slots as it wants."""
    there = {column["name"] for column in sa.inspect(connection).get_columns(schema.study.name)}
    for column in schema.SINCE_4:
        if column.name not in there:
            kind = column.type.compile(connection.dialect)
            connection.exec_driver_sql(
                f"ALTER TABLE {schema.study.name} ADD COLUMN {column.name} {kind}"
            )


MIGRATIONS: list[Callable[[sa.Connection], None]] = [
    _create_tables,
    _follow_deleted_studies,
    _index_what_grows,
    _let_slots_cost_money,
]
