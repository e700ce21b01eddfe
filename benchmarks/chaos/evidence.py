"""Read the checker's input from the tables of either database."""

from __future__ import annotations

from collections import defaultdict

import optuna
import sqlalchemy as sa

from benchmarks.chaos.checker import Ending, Entry, Segment, Trial
from optuna_deadline.allocation.database import schema
from optuna_deadline.allocation.database.limits import database_now


def read_entries(engine: sa.Engine) -> list[Entry]:
    """The event log."""
    names = _names(engine)
    with engine.connect() as connection:
        rows = connection.execute(sa.select(schema.event).order_by(schema.event.c.id)).all()
    return [
        Entry(
            row.id, row.kind, row.pool, names.get(row.study_id, ""), row.number, row.slot,
            row.fence, row.term, row.worker, row.detail.get("step"),
            tuple(row.detail.get("lent", ())), row.detail.get("slots"),
        )
        for row in rows
    ]  # fmt: skip


def read_reports(engine: sa.Engine) -> dict[Segment, list[int]]:
    """The steps in the table, by the segment that reported them."""
    names = _names(engine)
    found: dict[Segment, list[int]] = defaultdict(list)
    columns = schema.report.c
    query = sa.select(columns.study_id, columns.number, columns.fence, columns.step)
    with engine.connect() as connection:
        for row in connection.execute(query.order_by(columns.step)):
            found[names[row.study_id], row.number, row.fence].append(row.step)
    return found


def read_endings(engine: sa.Engine, url: str, studies: list[str]) -> dict[Trial, Ending]:
    """The state of each trial in Optuna and in the table."""
    steps: dict[Trial, list[int]] = defaultdict(list)
    for (study, number, _), found in read_reports(engine).items():
        steps[study, number] += found
    names = _names(engine)
    with engine.connect() as connection:
        rows = connection.execute(sa.select(schema.trial)).all()
    told = {(names[row.study_id], row.number): row.told for row in rows}
    states: dict[Trial, str] = {}
    for study in studies:
        for trial in optuna.load_study(study_name=study, storage=url).trials:
            states[study, trial.number] = trial.state.name
    return {
        # A trial that a planner asked for but did not write to the table is only pruned.
        key: Ending(states.get(key), told.get(key, key in states), sorted(steps[key]))
        for key in {*told, *states}
    }


def settled(engine: sa.Engine) -> set[str]:
    """The studies that have ended."""
    query = sa.select(schema.study.c.name).where(schema.study.c.settled.is_not(None))
    with engine.connect() as connection:
        return set(connection.execute(query).scalars())


def unsettled(engine: sa.Engine) -> list[str]:
    """The studies that have not ended."""
    query = sa.select(schema.study.c.name).where(schema.study.c.settled.is_(None))
    with engine.connect() as connection:
        return list(connection.execute(query).scalars())


def offers(engine: sa.Engine) -> list[tuple[str, str, int]]:
    """Each offer of a slot: its host and device, the study, and the worker's process number."""
    names = _names(engine)
    slot = schema.slot.c
    columns = (slot.host, slot.device, schema.worker.c.study_id, schema.worker.c.pid)
    offered = schema.slot.c.id == schema.offer.c.slot_id
    query = (
        sa.select(*columns)
        .join(schema.offer, offered)
        .join(schema.worker, schema.worker.c.id == schema.offer.c.worker)
    )
    with engine.connect() as connection:
        rows = connection.execute(query).all()
    return [(f"{row.host}/{row.device}", names[row.study_id], row.pid) for row in rows]


def bring_forward(engine: sa.Engine, seconds: float) -> None:
    """Bring the deadlines of all studies forward to a number of seconds from now."""
    with engine.begin() as connection:
        connection.execute(sa.update(schema.study).values(deadline=database_now() + seconds))


def _names(engine: sa.Engine) -> dict[int, str]:
    with engine.connect() as connection:
        rows = connection.execute(sa.select(schema.study.c.study_id, schema.study.c.name))
        return {row.study_id: row.name for row in rows}
