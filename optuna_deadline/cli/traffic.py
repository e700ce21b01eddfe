"""How late plans see reports: by how far the database is, and how much is said to it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import sqlalchemy as sa

from optuna_deadline.allocation.sql.database.clock import database_now
from optuna_deadline.allocation.sql.database.schema import report, worker

#: Round trips of one trial's turn to be written: its reports, Optuna's copy of them, a checkpoint,
#: and how far it has come.
TURN = 14

_RECENT = 60.0  # seconds
_MOST = 2000  # reports that are looked at
_LATE = 3.0  # reports that a trial may make until the plan sees one


@dataclass(frozen=True)
class Traffic:
    """What passes between one worker and its database."""

    trip: float  #: seconds of a round trip
    reports: float  #: a second
    trials: float  #: that report

    @property
    def late(self) -> float:
        """Seconds until what a trial says is written, at worst: the others' turns come first."""
        return TURN * self.trip * self.trials

    @property
    def warning(self) -> str | None:
        """What to do where a trial makes several reports until one is seen."""
        if TURN * self.trip * self.reports <= _LATE:
            return None
        return (
            f"a round trip to the database takes {self.trip * 1000:.0f} ms and each worker's "
            f"trials report {self.reports:.0f} times a second: plans see them {self.late:.1f} s "
            "late; report and save less often, or bring the database nearer"
        )


def round_trip(connection: sa.Connection) -> float:
    """Seconds of a round trip: the middle one of five."""
    times = []
    for _ in range(5):
        began = time.monotonic()
        connection.execute(sa.select(1))
        times.append(time.monotonic() - began)
    return sorted(times)[2]


def measure(connection: sa.Connection, study_id: int | None = None) -> Traffic:
    """What passed of late, for each live worker of a study or of the whole database."""
    trip = round_trip(connection)
    now = float(connection.execute(sa.select(database_now())).scalar_one())
    newest = sa.select(report.c.study_id, report.c.number, report.c.at)
    live = sa.select(sa.func.count()).where(worker.c.state == "live", worker.c.lease > now)
    if study_id is not None:
        newest = newest.where(report.c.study_id == study_id)
        live = live.where(worker.c.study_id == study_id)
    rows = connection.execute(newest.order_by(report.c.id.desc()).limit(_MOST)).all()
    recent = [row for row in rows if row.at > now - _RECENT]
    workers = max(1, connection.execute(live).scalar_one())
    seconds = max(1.0, min(_RECENT, now - min([row.at for row in recent], default=now)))
    trials = len({(row.study_id, row.number) for row in recent})
    return Traffic(trip, len(recent) / seconds / workers, trials / workers)
