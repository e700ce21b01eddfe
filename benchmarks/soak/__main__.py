"""``python -m benchmarks.soak``: a compressed week of many studies among faults, row by row."""

from __future__ import annotations

import argparse
import random
import sys
import time
from contextlib import suppress
from pathlib import Path

import optuna
import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from benchmarks.chaos import evidence
from benchmarks.chaos.checker import Ending, Segment, Trial
from benchmarks.chaos.databases import Database, Postgres, Sqlite
from benchmarks.chaos.disk import enter
from benchmarks.chaos.faults import LONG, Faults
from benchmarks.chaos.fleet import Fleet
from benchmarks.chaos.run import say
from benchmarks.chaos.usage import read_uses
from benchmarks.chaos.worker import POOL, step_sqlite
from benchmarks.soak import promises
from benchmarks.soak.promises import Row, none
from benchmarks.soak.rota import CREWS, Rota
from optuna_deadline.allocation.database.opening import connect
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.files import intact
from optuna_deadline.elastic import agree
from optuna_deadline.planning.best_model import find_winner
from optuna_deadline.planning.leftovers import delete, needless

#: Seconds between two faults, in the mean.
_BETWEEN = 1.5
#: A study without a worker ends by the clock that is stepped: so large steps are in `make chaos`,
#: whose studies always have workers.
_STEPS = (-5.0, -0.5, 0.0, 0.5, 5.0)
_LAST_STUDIES = 90.0  # seconds for the studies that are open after the last fault


def main() -> int:
    """Run on each database; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--database", choices=("postgresql", "sqlite"), action="append")
    parser.add_argument("--trials", type=int, default=5000, help="on each database")
    parser.add_argument("--studies", type=int, default=150, help="on each database")
    parser.add_argument("--minutes", type=float, default=19.0, help="at most, on each database")
    parser.add_argument("--seed", type=int, default=1, help="of studies and faults")
    given = parser.parse_args()
    folder = enter("benchmarks.soak", sys.argv[1:])
    good = True
    for kind in given.database or ["postgresql", "sqlite"]:
        rows = _run(kind, folder / kind, given)
        good &= all(row.kept for row in rows)
        _print(kind, rows)
    say(f"Logs and what the ranks wrote are in {folder}.")
    return 0 if good else 1


def _run(kind: str, folder: Path, given: argparse.Namespace) -> list[Row]:
    (folder / "usage").mkdir(parents=True)
    (folder / "disk").symlink_to(folder.parent / "disk")
    members = sum(map(len, CREWS))
    database: Database = Postgres(folder, members) if kind == "postgresql" else Sqlite(folder)
    if kind == "sqlite":
        step_sqlite(folder / "clock")
    fleet = None
    rng = random.Random(given.seed)
    try:
        hosts = 2 if kind == "postgresql" else 1
        rota = Rota(database, folder, hosts, rng, given.studies, given.trials)
        fleet = Fleet(rota.places(), folder)
        faults = _strike(rota, fleet, database, rng, 60 * given.minutes)
        _finish(rota, fleet, database)
        return _judge(rota, faults, database, folder)
    finally:
        if fleet is not None:
            fleet.close()
        database.close()


def _strike(
    rota: Rota, fleet: Fleet, database: Database, rng: random.Random, seconds: float
) -> Faults:
    faults = Faults(fleet, database, rng, _STEPS)
    began = printed = struck = time.monotonic()
    while (now := time.monotonic()) < began + seconds and not rota.ended:
        faults.mend()
        rota.keep(fleet)
        if now >= struck:
            faults.strike()
            struck = now + rng.expovariate(1 / _BETWEEN)
        if now - printed > 30:
            printed = now
            ended = sum(term.ended is not None for term in rota.terms)
            say(f"{now - began:.0f} s: {ended} of {rota.studies} studies have ended, "
                f"{faults.count.total()} faults")  # fmt: skip
        time.sleep(0.1)
    faults.mend(everything=True)
    return faults


def _finish(rota: Rota, fleet: Fleet, database: Database) -> None:
    """Let the open studies end, and all workers."""
    rota.studies = len(rota.terms)
    fleet.dismiss_ghosts()
    until = time.monotonic() + _LAST_STUDIES
    while not rota.ended and time.monotonic() < until:
        rota.keep(fleet)
        time.sleep(0.2)
    fleet.join(promises.LATE)


def _judge(rota: Rota, faults: Faults, database: Database, folder: Path) -> list[Row]:
    engine = connect(database.url).engine
    names = [term.name for term in rota.terms]

    def read() -> tuple[dict[Trial, Ending], dict[Segment, list[int]]]:
        return evidence.read_endings(engine, database.url, names), evidence.read_reports(engine)

    uses, entries = read_uses(folder / "usage"), evidence.read_entries(engine)
    endings, reported = before = read()
    logs = {path.stem: path.read_text(errors="replace") for path in folder.glob("worker-*.log")}
    tables = [_table(database, name) for name in names]

    def winners() -> dict[str, Path | None]:
        found = [find_winner(table, "maximize", intact) for table in tables]
        saved = [None if one is None else one.checkpoint for one in found]
        paths = [None if one is None else Path(str(one.path)) for one in saved]
        return dict(zip(names, paths, strict=True))

    size, kept = _size(engine), winners()
    left = sum(len(needless(table)) for table in tables)  # by workers that were killed
    for table in tables:
        for host in ("host-0", "host-1"):
            files = needless(table)
            place = files and Path(str(files[0].path)).parents[1].name
            delete(table, files, place or "", host, time.monotonic() + 60.0)
    folded = [table.fold() for table in tables]
    same = read() == before and winners() == kept
    saved = {entry.study for entry in entries if entry.kind == "checkpoint"}
    return [
        *promises.of_training(uses, entries, endings, reported, faults.unsaved),
        *promises.of_deadlines(rota.terms, uses, LONG[1]),
        *promises.of_files(folder / "disk" / "checkpoints", kept, saved),
        *promises.of_logs(logs),
        promises.of_pace(uses),
        Row("clean changes no trial, report or best model",
            f"{sum(e for e, _ in folded)} events, {sum(w for _, w in folded)} workers", same),
        none("no process is left", _left(folder)),
        Row("(figure) checkpoints that clean had to delete", str(left), True),
        Row("(figure) trials", f"{len(endings)} in {len(names)} studies", True),
        Row("(figure) size of the database", f"{size / len(endings) / 1024:.1f} KB a trial", True),
        Row("(figure) faults", f"{faults.count.total()}, of {len(faults.count)} kinds", True),
    ]  # fmt: skip


def _table(database: Database, name: str) -> AllocationTable:
    study = optuna.load_study(study_name=name, storage=database.url)
    terms = agree(study, None)
    return AllocationTable(connect(database.url), POOL, terms.study_id)


def _size(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            sql = "SELECT pg_database_size(current_database())"
            return int(connection.exec_driver_sql(sql).scalar_one())
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        return int(pages) * int(connection.exec_driver_sql("PRAGMA page_size").scalar_one())


def _left(folder: Path) -> list[str]:
    """Processes of workers and trials that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"CHAOS_USAGE={folder}".encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


def _print(kind: str, rows: list[Row]) -> None:
    table = Table("promise", "measured", "", title=kind)
    for row in rows:
        table.add_row(row.promise, row.measured, "kept" if row.kept else "BROKEN")
        for line in row.found[:10]:
            say(f"{row.promise}: {line}")
    Console(width=140).print(table)


if __name__ == "__main__":
    sys.exit(main())
