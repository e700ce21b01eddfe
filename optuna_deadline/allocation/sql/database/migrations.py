"""The schema's version and the numbered migrations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from optuna_deadline.allocation.sql.database import schema
from optuna_deadline.allocation.sql.database.transaction import begin_bounded
from optuna_deadline.errors import SchemaMismatch

_ADVISORY_LOCK = 0x0D_EAD_11E
_PATIENCE = 60.0  # seconds: an index on a grown table takes long
_IDLE = 10.0  # seconds between statements, in which the schema is inspected


def migrate(engine: sa.Engine) -> None:
    """Migrate the tables to this version; several processes may call it at once.

    Raises:
        SchemaMismatch: A newer version of the package wrote the tables.
    """
    with engine.begin() as connection:
        begin_bounded(connection, statement=_PATIENCE, idle=_IDLE)
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
    """The schema version of the tables in the database; 0 if there are none."""
    if not sa.inspect(connection).has_table(schema.version.name):
        return 0
    return int(connection.execute(sa.select(schema.version.c.version)).scalar() or 0)


def _create_tables(connection: sa.Connection) -> None:
    schema.metadata.create_all(connection)


def _add_delete_triggers(connection: sa.Connection) -> None:
    """Let ``optuna.delete_study`` delete this package's rows.

    PostgreSQL cascades. On SQLite, Optuna's connections do not enforce foreign keys, so triggers
    do the same for every client.
    """
    if not sa.inspect(connection).has_table("studies"):
        return  # a separate database, named by `table=`
    study = schema.study.name
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(
            f"ALTER TABLE {study} ADD CONSTRAINT {study}_of_optuna FOREIGN KEY (study_id) "
            "REFERENCES studies (study_id) ON DELETE CASCADE"
        )
        return
    _add_sqlite_trigger(connection)


def _add_sqlite_trigger(connection: sa.Connection) -> None:
    study = schema.study.name
    there = sa.inspect(connection).get_table_names()  # a later migration creates the others
    children = [
        table.name
        for table in schema.metadata.sorted_tables
        if table not in (schema.study, schema.slot)
        and "study_id" in table.c
        and table.name in there
    ]
    deletes = "".join(
        f"DELETE FROM {name} WHERE study_id = OLD.study_id; " for name in (*children, study)
    )
    connection.exec_driver_sql(
        f"CREATE TRIGGER {study}_follows AFTER DELETE ON studies BEGIN {deletes}END"
    )


def _add_indexes(connection: sa.Connection) -> None:
    """Indexes for the queries of the loops, so that their cost does not grow."""
    for index in schema.SINCE_3:
        index.create(connection, checkfirst=True)  # new tables have them already


def _add_budgets(connection: sa.Connection) -> None:
    """A study may have a budget and pay for slots."""
    _add_columns(connection, schema.SINCE_4)


def _add_columns(connection: sa.Connection, columns: Sequence[sa.Column[Any]]) -> None:
    """Add nullable columns; new tables have them already."""
    inspector = sa.inspect(connection)
    for column in columns:
        table = column.table.name
        if column.name not in [known["name"] for known in inspector.get_columns(table)]:
            kind = column.type.compile(connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {column.name} {kind}")


def _add_lending(connection: sa.Connection) -> None:
    """A slot belongs to its host, is offered by workers, and is lent to a study."""
    for table in (schema.tenant, schema.offer):
        table.create(connection, checkfirst=True)
    inspector = sa.inspect(connection)
    slot, worker = schema.slot.name, schema.worker.name
    if not any(column["name"] == "provider" for column in inspector.get_columns(slot)):
        return  # new tables
    for statement in (
        f"ALTER TABLE {slot} ADD COLUMN lent_to INTEGER",
        f"UPDATE {slot} SET lent_to = "
        f"(SELECT study_id FROM {worker} WHERE {worker}.id = {slot}.provider)",
        f"INSERT INTO {schema.offer.name} (worker, slot_id) SELECT provider, id FROM {slot} "
        f"WHERE provider IN (SELECT id FROM {worker})",
        f"INSERT INTO {schema.tenant.name} (pool, study_id, weight, joined, term, expires, live, "
        "done, served, entitled, counted) SELECT pool, study_id, 1, MIN(registered), 0, 0, 0, 0, "
        f"0, 0, MIN(registered) FROM {worker} GROUP BY pool, study_id",
        f"DROP INDEX {schema.SLOT_POOL.name}",
        f"ALTER TABLE {slot} DROP COLUMN provider",
    ):
        connection.exec_driver_sql(statement)
    schema.SLOT_POOL.create(connection)
    if connection.dialect.name == "sqlite" and inspector.has_table("studies"):
        connection.exec_driver_sql(f"DROP TRIGGER {schema.study.name}_follows")
        _add_sqlite_trigger(connection)


def _add_rung_totals(connection: sa.Connection) -> None:
    """Count a rung's values at each insert.

    The trigger runs in the inserting statement, which is its own transaction: no client can freeze
    in it with the lock on a count.
    """
    schema.rung_total.create(connection, checkfirst=True)
    rung, total = schema.rung.name, schema.rung_total.name
    connection.exec_driver_sql(
        f"INSERT INTO {total} (study_id, rung, total) "
        f"SELECT study_id, rung, COUNT(*) FROM {rung} GROUP BY study_id, rung"
    )
    count = (
        f"INSERT INTO {total} (study_id, rung, total) VALUES (NEW.study_id, NEW.rung, 1) "
        f"ON CONFLICT (study_id, rung) DO UPDATE SET total = {total}.total + 1;"
    )
    _create_trigger(connection, f"{rung}_count", f"AFTER INSERT ON {rung}", count)
    if connection.dialect.name == "sqlite" and sa.inspect(connection).has_table("studies"):
        connection.exec_driver_sql(f"DROP TRIGGER {schema.study.name}_follows")
        _add_sqlite_trigger(connection)


def _create_trigger(connection: sa.Connection, name: str, when: str, statement: str) -> None:
    """Run a statement for each row, by a trigger whose name ends in ``s``."""
    trigger = f"CREATE TRIGGER {name}s {when} FOR EACH ROW"
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(
            f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN {statement} RETURN NULL; END $$"
        )
        connection.exec_driver_sql(f"{trigger} EXECUTE FUNCTION {name}()")
        return
    connection.exec_driver_sql(f"{trigger} BEGIN {statement} END")


def _add_requests(connection: sa.Connection) -> None:
    """A user may hold a trial, pin its gang's size, and drain a worker."""
    _add_columns(connection, schema.SINCE_7)


def _add_machine_info(connection: sa.Connection) -> None:
    """A worker describes its host, its checkpoint store and its software."""
    _add_columns(connection, schema.SINCE_8)


def _add_gang_parts(connection: sa.Connection) -> None:
    """A gang may have slots of several workers, whose ranks meet at an address."""
    _add_columns(connection, schema.SINCE_9)
    for table in (schema.part, schema.meeting):
        table.create(connection, checkfirst=True)
    if connection.dialect.name == "sqlite" and sa.inspect(connection).has_table("studies"):
        connection.exec_driver_sql(f"DROP TRIGGER {schema.study.name}_follows")
        _add_sqlite_trigger(connection)


def _add_trial_batch(connection: sa.Connection) -> None:
    """A trial may have a batch that its gang size must divide."""
    _add_columns(connection, schema.SINCE_10)


def _index_workers_by_study(connection: sa.Connection) -> None:
    """An index of workers by study: its cost does not grow with the pool."""
    schema.SINCE_11.create(connection, checkfirst=True)


def _add_keys_and_boots(connection: sa.Connection) -> None:
    """A key distinguishes studies of one name, and a boot id processes of one pid."""
    _add_columns(connection, schema.SINCE_12)
    _let_events_go_with_their_study(connection)


def _add_pausable(connection: sa.Connection) -> None:
    """A trial's objective may not support pausing."""
    _add_columns(connection, schema.SINCE_13)


def _add_rung_sequence(connection: sa.Connection) -> None:
    """A plain study has a rule, and its processes read new values at the rungs."""
    _add_columns(connection, schema.SINCE_14)
    schema.RUNG_SEQUENCE.create(connection, checkfirst=True)


def _let_events_go_with_their_study(connection: sa.Connection) -> None:
    """Remove the references of events, so that they can be written whatever is deleted."""
    study = schema.study.name
    forget = f"DELETE FROM {schema.event.name} WHERE study_id = OLD.study_id;"
    _create_trigger(connection, f"{study}_forget", f"AFTER DELETE ON {study}", forget)


def _widen_texts(connection: sa.Connection) -> None:
    """Longer texts: a policy may be a path, and a pool a study's name; SQLite has no limit."""
    if connection.dialect.name != "postgresql":
        return
    name = schema.pool.c.name.type
    wider = {
        schema.study: {"policy": schema.study.c.policy.type},
        schema.pool: {"name": name},
        **{one: {"pool": name} for one in schema.metadata.sorted_tables if "pool" in one.c},
    }
    for table, columns in wider.items():
        for column, kind in columns.items():
            length = kind.compile(connection.dialect)
            connection.exec_driver_sql(
                f"ALTER TABLE {table.name} ALTER COLUMN {column} TYPE {length}"
            )


MIGRATIONS: list[Callable[[sa.Connection], None]] = [
    _create_tables,
    _add_delete_triggers,
    _add_indexes,
    _add_budgets,
    _add_lending,
    _add_rung_totals,
    _add_requests,
    _add_machine_info,
    _add_gang_parts,
    _add_trial_batch,
    _index_workers_by_study,
    _add_keys_and_boots,
    _add_pausable,
    _add_rung_sequence,
    _widen_texts,
]
