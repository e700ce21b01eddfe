"""The creation of the tables, and the check that they have this package's schema version."""

from __future__ import annotations

import sqlalchemy as sa

from optuna_deadline.allocation.database import schema
from optuna_deadline.allocation.database.limits import begin_bounded
from optuna_deadline.errors import SchemaMismatch

_ADVISORY_LOCK = 0x0D_EAD_11E
_STATEMENT = 60.0  # seconds: another process may hold the lock while it creates the tables
_IDLE = 10.0  # seconds between statements, in which the schema is inspected
#: The version of the schema; each change of the tables raises it.
VERSION = 21


def create_or_check(engine: sa.Engine) -> None:
    """Create the tables if there are none; several processes may call it at once.

    Raises:
        SchemaMismatch: Another version of the package created the tables.
    """
    with engine.begin() as connection:
        begin_bounded(connection, statement=_STATEMENT, idle=_IDLE)
        # SQLite's BEGIN IMMEDIATE is the same lock.
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
        found = version(connection)
        if found > VERSION:
            raise SchemaMismatch(
                f"The tables have schema version {found}, this package knows {VERSION}: "
                "upgrade optuna-deadline on this machine."
            )
        if 0 < found < VERSION:
            raise SchemaMismatch(
                f"The tables have schema version {found}, this package needs {VERSION}: finish "
                "their studies with the version of optuna-deadline that created them, or name "
                "another database with storage=URL."
            )
        if not found:
            _create(connection)
            connection.execute(sa.insert(schema.version).values(id=1, version=VERSION))


def version(connection: sa.Connection) -> int:
    """The schema version of the tables in the database; 0 if there are none."""
    if not sa.inspect(connection).has_table(schema.version.name):
        return 0
    return int(connection.execute(sa.select(schema.version.c.version)).scalar() or 0)


def _create(connection: sa.Connection) -> None:
    schema.metadata.create_all(connection)
    _count_rungs(connection)
    # Without references, so that events can be written whatever is deleted.
    study, event = schema.study.name, schema.event.name
    forget = f"DELETE FROM {event} WHERE study_id = OLD.study_id;"
    _create_trigger(connection, f"{study}_forget", f"AFTER DELETE ON {study}", forget)
    if sa.inspect(connection).has_table("studies"):  # else a separate database, named by `table=`
        _follow_optuna(connection)


def _follow_optuna(connection: sa.Connection) -> None:
    """Let ``optuna.delete_study`` delete this package's rows.

    PostgreSQL cascades. On SQLite, Optuna's connections do not enforce foreign keys, so a trigger
    does the same for every client.
    """
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
        if "study_id" in table.c and table not in (schema.study, schema.slot)
    ]
    deletes = " ".join(
        f"DELETE FROM {name} WHERE study_id = OLD.study_id;" for name in (*children, study)
    )
    _create_trigger(connection, f"{study}_follow", "AFTER DELETE ON studies", deletes)


def _count_rungs(connection: sa.Connection) -> None:
    """Count a rung's values at each insert.

    The trigger runs in the inserting statement, which is its own transaction: no client can freeze
    in it with the lock on a count.
    """
    rung, total = schema.rung.name, schema.rung_total.name
    count = (
        f"INSERT INTO {total} (study_id, rung, total) VALUES (NEW.study_id, NEW.rung, 1) "
        f"ON CONFLICT (study_id, rung) DO UPDATE SET total = {total}.total + 1;"
    )
    _create_trigger(connection, f"{rung}_count", f"AFTER INSERT ON {rung}", count)


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
