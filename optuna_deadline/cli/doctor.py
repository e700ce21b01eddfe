"""``optuna-deadline doctor``: find problems of this machine and say how to solve them."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import sqlalchemy as sa
import typer

from optuna_deadline.allocation.database.engine import autocommit, create
from optuna_deadline.allocation.database.limits import database_now
from optuna_deadline.allocation.database.opening import connect
from optuna_deadline.allocation.database.schema import report, study, trial
from optuna_deadline.allocation.records import ALIVE
from optuna_deadline.checkpoints.storage import check, check_folder, parse_location
from optuna_deadline.cli.app import GONE, Json, OptionalStorage, command, print_json
from optuna_deadline.cli.databases import (
    NoStudyTables,
    Traffic,
    check_url,
    error_message,
    measure,
    open_storage,
    round_trip,
    without_password,
)
from optuna_deadline.errors import DeadlineError, at_most
from optuna_deadline.options import CHECKPOINTS
from optuna_deadline.worker.database_errors import DATABASE_ERRORS
from optuna_deadline.worker.devices import host_name, present_gpus

_SLOW = 0.05  # seconds of a round trip
_APART = 2.0  # seconds between two clocks
_LITTLE = 5e9  # bytes
_EXTRAS = {
    "torch": "optuna-deadline[torch]",
    "lightning": "optuna-deadline[lightning]",
    "optuna-dashboard": "optuna-deadline[dashboard]",
    "plotly": "optuna-deadline[dashboard]",
}


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    state: str  #: good, note or bad
    words: str


@command
def doctor(
    storage: OptionalStorage = None,
    checkpoints: Annotated[str, typer.Option(help="Folder or URL for checkpoints.")] = str(
        CHECKPOINTS
    ),
    as_json: Json = False,
) -> None:
    """Check versions, GPUs, disk, database and clocks; exit with 1 if something is bad."""
    findings = [*_versions(), _gpus(), _room(checkpoints)]
    if storage is not None:
        findings += _database(storage)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            print(f"{finding.state:<5} {finding.name}: {finding.words}")
    if any(finding.state == "bad" for finding in findings):
        raise typer.Exit(GONE)


def _versions() -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    ours = ", ".join(f"{name} {version(name)}" for name in ("optuna-deadline", "optuna"))
    yield Finding("versions", "good", f"{ours}, Python {python}")
    for name, extra in _EXTRAS.items():
        try:
            yield Finding(name, "good", version(name))
        except PackageNotFoundError:
            yield Finding(name, "note", f"not installed; where you need it: pip install '{extra}'")


def _gpus() -> Finding:
    try:
        found = present_gpus()
    except Exception as error:  # a driver that fails is a finding
        return Finding("GPUs", "bad", f"nvidia-smi fails ({error}); mend the driver")
    if not found:
        return Finding("GPUs", "note", "none that the driver lists; --cpus offers CPU slots")
    return Finding("GPUs", "good", f"{', '.join(map(str, found))} on {host_name()}")


def _room(given: str) -> Finding:
    place = parse_location(given)
    if isinstance(place, Path):
        return _disk(place)
    try:
        check(place)
    except DeadlineError as error:
        return Finding("store", "bad", str(error))
    return Finding("store", "good", f"checkpoints can be kept at {place}")


def _disk(folder: Path) -> Finding:
    try:
        check_folder(folder.resolve())
    except DeadlineError as error:
        return Finding("disk", "bad", str(error))
    there = folder.resolve()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    words = f"{free / 1e9:.1f} GB free for checkpoints in {folder}"
    if free < _LITTLE:
        return Finding("disk", "bad", f"{words}; make room, or name another with --checkpoints")
    return Finding("disk", "good", words)


def _database(text: str) -> Iterator[Finding]:
    url = check_url(text)
    sqlite = url.get_backend_name() == "sqlite"
    name = without_password(url.render_as_string(hide_password=False))
    looks: list[Callable[[sa.Connection], Finding]] = [_answers, _clock, _limits]
    engine: sa.Engine | None
    try:
        try:
            open_storage(text)
            engine = connect(url).engine
        except NoStudyTables as nothing:
            yield Finding("database", "note", str(nothing))
            engine = None if sqlite else create(url)
        if engine is not None:
            with autocommit(engine) as connection:
                yield Finding("database", "good", f"{name}, {_server(connection)}")
                for look in looks:
                    yield look(connection)
    except DeadlineError as error:
        yield Finding("database", "bad", str(error))
    except (*DATABASE_ERRORS, sa.exc.DatabaseError) as error:
        if (words := error_message(error)) is None:
            raise
        yield Finding("database", "bad", words)
    if sqlite:
        yield Finding("hosts", "note", "SQLite serves workers of one host; else use PostgreSQL")


def _server(connection: sa.Connection) -> str:
    info = ".".join(map(str, connection.dialect.server_version_info or ()))
    return f"{connection.dialect.name} {info} by {connection.dialect.driver}"


def _answers(connection: sa.Connection) -> Finding:
    used = sa.inspect(connection).has_table(report.name)
    traffic = measure(connection) if used else None
    if traffic is not None and traffic.warning is not None:
        return Finding("latency", "note", traffic.warning)
    trip = round_trip(connection) if traffic is None else traffic.trip
    words = f"a round trip takes {trip * 1000:.1f} ms"
    if trip > _SLOW:
        late = Traffic(trip, 0.0, 1.0).late
        words = f"{words}; plans see what a worker's trials say {late:.1f} s late for each trial"
        return Finding("latency", "note", words)
    return Finding("latency", "good", words)


def _limits(connection: sa.Connection) -> Finding:
    """Report unfinished trials that cannot use several slots, with the newest one's reason."""
    nothing = Finding("slots", "good", "no trial is limited to fewer than there are")
    if not sa.inspect(connection).has_table(trial.name):
        return nothing
    columns = study.c.name, trial.c.number, trial.c.slot_limit, trial.c.limit_reason
    query = (
        sa.select(*columns)
        .join(trial, trial.c.study_id == study.c.study_id)
        .where(trial.c.slot_limit.is_not(None), trial.c.state.in_(ALIVE))
        .order_by(study.c.study_id.desc(), trial.c.number.desc())
    )
    found = connection.execute(query).all()
    if not found:
        return nothing
    name, number, limit, reason = found[0]
    words = f"trial {number} of {name} trains on {at_most(limit)}: {reason}"
    more = f" ({len(found) - 1} more are limited)" if len(found) > 1 else ""
    return Finding("slots", "note", f"{words}{more}")


def _clock(connection: sa.Connection) -> Finding:
    began = time.time()
    theirs = float(connection.execute(sa.select(database_now())).scalar_one())
    apart = theirs - (began + time.time()) / 2
    words = f"the database's is {abs(apart):.1f} s {'ahead' if apart >= 0 else 'behind'}"
    if abs(apart) > _APART:
        advice = "deadlines are kept by the database's clock; set this machine's by NTP"
        return Finding("clocks", "note", f"{words}; {advice}")
    return Finding("clocks", "good", words)
