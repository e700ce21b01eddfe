"""The tables, beside Optuna's in the study's own database.

One row per physical slot makes "at most one holder" a primary-key fact: nothing is counted. Three
states are separate: wanted (``trial.desired_*``, written by the study's planner, and
``slot.lent_to``, written by the pool's leader), granted (``slot.holder``, changed only by fenced
transitions) and trusted (in each worker). Users' requests (``trial.held``, ``trial.pinned``,
``worker.drained``) are columns of the rows that they concern. Times are seconds since the epoch by
the database's clock. NaN is stored as NULL, because SQLite has no NaN.

Only ``study`` refers to Optuna's own tables: a foreign key that is checked while training runs
would make Optuna's ``ask()`` wait.
"""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from types import NoneType
from typing import Any

import sqlalchemy as sa

from optuna_deadline.allocation.database.checked_columns import (
    JsonColumn,
    OneOf,
    WholeWithin,
    Within,
    mapping,
    pairs,
    texts,
)
from optuna_deadline.allocation.records import ALIVE
from optuna_deadline.errors import DeadlineError

PREFIX = "optuna_deadline_"
POLICY_LENGTH, POOL_LENGTH = 1024, 512  # characters
_NUMBER = (int, float)
_FINITE = Within(-sys.float_info.max, sys.float_info.max)
_SIZE = WholeWithin(1, 2**31 - 1)  # of a gang
#: Until the end of the year 9999, so that it can be shown as a date.
_INSTANT = Within(0.0, datetime.max.replace(microsecond=0, tzinfo=timezone.utc).timestamp())
metadata = sa.MetaData()


def _table(name: str, *columns: sa.schema.SchemaItem) -> sa.Table:
    return sa.Table(PREFIX + name, metadata, *columns)


def _study_id(**kwargs: bool) -> sa.Column[int]:
    reference = sa.ForeignKey(f"{PREFIX}study.study_id", ondelete="CASCADE")
    return sa.Column("study_id", sa.Integer, reference, **kwargs)  # type: ignore[arg-type]


def _row_id() -> sa.Column[int]:
    # SQLite numbers rows only if the key's type is INTEGER.
    kind = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return sa.Column("id", kind, primary_key=True, autoincrement=True)


version = _table(
    "version",
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
)

study = _table(
    "study",
    # Optuna's id if the tables are beside Optuna's; a separate number if `storage=` is given.
    sa.Column("study_id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(512), unique=True, nullable=False),
    sa.Column("direction", OneOf(16, "minimize", "maximize"), nullable=False),
    sa.Column("started", _INSTANT, nullable=False),
    sa.Column("deadline", _INSTANT, nullable=False),
    sa.Column("duration", _FINITE),  # seconds, if the user gave a duration
    # A name, or a file and a name; NULL until a worker joins.
    sa.Column("policy", sa.String(POLICY_LENGTH)),
    sa.Column("parameters", JsonColumn(mapping), nullable=False),
    sa.Column("gate_closed", _FINITE),  # since when no new trial may start
    sa.Column("settled", _FINITE),  # when all ends were reported
    # All NULL if slots are free.
    sa.Column("money", JsonColumn(mapping)),  # the budget and the prices
    sa.Column("pool_slots", sa.Integer),  # slots of the pool that the study pays for
    sa.Column("funds_end", _FINITE),  # when the budget is used up, at that size
    sa.Column("key", sa.String(36)),  # random: studies of the same name differ
    # Former deadlines, each with its duration, if one was given, and its instant.
    sa.Column("earlier", JsonColumn(pairs((*_NUMBER, NoneType), _NUMBER), "[]")),
    sa.Column("max_slots", _SIZE),  # of a trial; NULL for no limit
)

rung = _table(
    "rung",
    _study_id(primary_key=True),
    # Each takes at least twice as many reports as the one before.
    sa.Column("rung", WholeWithin(0, 63), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("value", sa.Double),
    # Later rows have larger ones, so that a process reads each once.
    sa.Column("sequence", sa.Integer),
)

#: The number of values of a rung: a trigger counts them at each insert, instead of the queries.
rung_total = _table(
    "rung_total",
    _study_id(primary_key=True),
    sa.Column("rung", sa.Integer, primary_key=True),
    sa.Column("total", sa.Integer, nullable=False),
)

pool = _table(
    "pool",
    sa.Column("name", sa.String(POOL_LENGTH), primary_key=True),  # by default the study's name
    sa.Column("epoch", sa.BigInteger, nullable=False),  # +1 for each plan
    sa.Column("ttl", _FINITE, nullable=False),
    sa.Column("grace", _FINITE, nullable=False),
)

#: The leader of a pool.
leader = _table(
    "leader",
    sa.Column("pool", sa.ForeignKey(f"{PREFIX}pool.name", ondelete="CASCADE"), primary_key=True),
    sa.Column("holder", sa.String(36)),
    sa.Column("term", sa.BigInteger, nullable=False),  # never reset: the row stays
    sa.Column("expires", _FINITE, nullable=False),
    sa.Column("divider", sa.String(16)),  # of the last leader
)

#: A study in a pool, and its planner.
tenant = _table(
    "tenant",
    sa.Column("pool", sa.ForeignKey(f"{PREFIX}pool.name", ondelete="CASCADE"), primary_key=True),
    _study_id(primary_key=True),
    sa.Column("weight", _FINITE, nullable=False),
    sa.Column("joined", _FINITE, nullable=False),
    sa.Column("planner", sa.String(36)),
    sa.Column("term", sa.BigInteger, nullable=False),  # never reset: the row stays
    sa.Column("expires", _FINITE, nullable=False),
    # Its claim: live trials, slots that it could use, slot-seconds.
    sa.Column("live", sa.Integer, nullable=False),
    sa.Column("most", sa.Integer),  # NULL before the first claim
    sa.Column("done", sa.Double, nullable=False),
    sa.Column("remaining", sa.Double),
    sa.Column("work", sa.Double),  # that has to be done; NULL for a search
    sa.Column("span", sa.Double, nullable=False),  # seconds of its longest trial
    sa.Column("restart", sa.Double, nullable=False),  # seconds that a trial loses if it moves
    # Its account in the pool, and until when it is up to date.
    sa.Column("served", sa.Double, nullable=False),  # slot-seconds, as the next
    sa.Column("entitled", sa.Double, nullable=False),
    sa.Column("spent", sa.Double, nullable=False),  # of its purse, from 0 to 1
    sa.Column("counted", _FINITE, nullable=False),
)

worker = _table(
    "worker",
    sa.Column("id", sa.String(36), primary_key=True),  # new for each process
    sa.Column("pool", sa.ForeignKey(f"{PREFIX}pool.name", ondelete="CASCADE"), nullable=False),
    _study_id(nullable=False),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("state", OneOf(16, "live", "left", "lost"), nullable=False),
    sa.Column("registered", _FINITE, nullable=False),
    sa.Column("lease", _FINITE, nullable=False),
    sa.Column("drained", _FINITE),  # since when a user drains it
    # The description of its host.
    sa.Column("machine", sa.String(64)),
    sa.Column("store", sa.Text),
    sa.Column("versions", sa.Text),
    sa.Column("address", sa.String(255)),  # for other hosts
    sa.Column("boot", sa.String(64)),  # the boot and the start of `pid`
)

slot = _table(
    "slot",
    _row_id(),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("device", sa.String(64), nullable=False),  # "gpu:0", "cpu:1"
    sa.Column("pool", sa.ForeignKey(f"{PREFIX}pool.name", ondelete="CASCADE"), nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("holder", sa.String(36)),
    sa.Column("study_id", sa.Integer),
    sa.Column("number", sa.Integer),
    sa.Column("lease", _FINITE),
    sa.Column("lent_to", sa.Integer),  # the study that it is lent to
    sa.Column("uuid", sa.String(64)),  # the GPU's UUID
    sa.UniqueConstraint("host", "device"),
    sa.CheckConstraint("(holder IS NULL) = (lease IS NULL)", name="held_means_leased"),
)

#: A slot belongs to its host; a live worker of each study there may offer it.
offer = _table(
    "offer",
    sa.Column("worker", sa.ForeignKey(f"{PREFIX}worker.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("slot_id", sa.ForeignKey(f"{PREFIX}slot.id", ondelete="CASCADE"), primary_key=True),
)

trial = _table(
    "trial",
    _study_id(primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("trial_id", sa.Integer, nullable=False),  # Optuna's
    # ready -> running <-> paused -> retired | failed | complete
    sa.Column("state", OneOf(16, *ALIVE, "retired", "failed", "complete"), nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),  # +1 with each segment
    sa.Column("owner", sa.String(36)),
    sa.Column("desired_mode", OneOf(8, "run", "pause", "stop"), nullable=False),
    sa.Column("desired_worker", sa.String(36)),
    sa.Column("desired_slots", sa.Integer, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("desired_since", _FINITE, nullable=False),
    sa.Column("horizon", sa.Integer),  # the last step to which the objective would train
    sa.Column("value", sa.Double),  # the value for Optuna
    sa.Column("told", sa.Boolean, nullable=False),
    sa.Column("failures", sa.Integer, nullable=False),
    # Both at a user's request.
    sa.Column("held", _FINITE),  # since when it is held
    sa.Column("pinned", _SIZE),  # the size of its gang
    sa.Column("desired_others", JsonColumn(pairs(str, int), "[]")),  # by worker besides its own
    sa.Column("batch", sa.Integer),  # its gang size must divide it
    # The most slots that it can train on, and why.
    sa.Column("slot_limit", _SIZE),
    sa.Column("limit_reason", sa.Text),
    # False once its objective has reported without using its segment.
    sa.Column("pausable", sa.Boolean),
    sa.Column("parent", sa.Integer),  # the trial whose checkpoint it starts from
)

segment = _table(
    "segment",
    _study_id(primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("fence", sa.BigInteger, primary_key=True),
    sa.Column("worker", sa.String(36), nullable=False),
    sa.Column("slots", sa.Integer, nullable=False),
    sa.Column("granted", _FINITE, nullable=False),
    sa.Column("ended", _FINITE),
    sa.Column("outcome", sa.String(16)),
    sa.Column("startup", _FINITE),  # seconds from the grant to the first step
    sa.Column("stop", _FINITE),  # seconds from the directive to the last rank's exit
    # How far the segment trained, in steps (fractions count), and the seconds that took.
    sa.Column("position_from", _FINITE),
    sa.Column("position_to", _FINITE),
    sa.Column("trained", _FINITE),
    sa.Column("workers", sa.Integer),  # NULL for one host
    # Seconds of that time in validations, and in waits for a plan.
    sa.Column("validated", _FINITE),
    sa.Column("waited", _FINITE),
)

#: For a gang over several workers, the part of each member; the member deletes its row when its
#: ranks are gone. It holds the slots of the part.
part = _table(
    "part",
    _study_id(primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("fence", sa.BigInteger, primary_key=True),  # the segment's
    sa.Column("worker", sa.String(36), primary_key=True),
    sa.Column("leader", sa.String(36), nullable=False),
    sa.Column("size", sa.Integer, nullable=False),  # the whole gang's
    sa.Column("first", sa.Integer, nullable=False),  # rank
    sa.Column("slots", JsonColumn(pairs(int, int)), nullable=False),  # with their fences
    sa.Column("devices", JsonColumn(texts), nullable=False),
)

#: Where the ranks of such a gang meet. The key gives access to them: grant viewers no access.
meeting = _table(
    "meeting",
    _study_id(primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("fence", sa.BigInteger, primary_key=True),
    sa.Column("address", sa.String(255), nullable=False),
    sa.Column("port", sa.Integer, nullable=False),
    sa.Column("link", sa.Integer, nullable=False),
    sa.Column("key", sa.String(64), nullable=False),
    sa.Column("resume", sa.Text),
)

report = _table(
    "report",
    _row_id(),
    _study_id(nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("value", sa.Double),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("slots", sa.Integer, nullable=False),
    sa.Column("trained", _FINITE, nullable=False),  # seconds of training over all segments
    sa.Column("at", _FINITE, nullable=False),
    sa.Column("regime", sa.String(40)),  # that begins after the report before, if one does
    sa.UniqueConstraint("study_id", "number", "step"),
)

checkpoint = _table(
    "checkpoint",
    _row_id(),
    _study_id(nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("value", sa.Double),  # the report at this very state, if there was one
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("checksum", sa.String(128), nullable=False),
    sa.Column("at", _FINITE, nullable=False),
)

event = _table(
    "event",
    _row_id(),
    sa.Column("at", _FINITE, nullable=False),
    sa.Column("pool", sa.String(POOL_LENGTH)),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("study_id", sa.Integer),
    sa.Column("number", sa.Integer),
    sa.Column("slot", sa.Integer),
    sa.Column("fence", sa.BigInteger),
    sa.Column("term", sa.BigInteger),
    sa.Column("worker", sa.String(36)),
    sa.Column("detail", JsonColumn(mapping, "{}")),
)

_INDEXES = {
    "rung_sequence": (rung.c.study_id, rung.c.sequence),
    "slot_holder": (slot.c.holder,),
    "slot_pool": (slot.c.pool,),
    "offer_slot": (offer.c.slot_id,),
    "trial_state": (trial.c.study_id, trial.c.state),
    "report_study": (report.c.study_id, report.c.id),
    "checkpoint_trial": (checkpoint.c.study_id, checkpoint.c.number),
    "event_pool": (event.c.pool, event.c.id),
    "event_study": (event.c.study_id, event.c.id),
    "segment_ended": (segment.c.study_id, segment.c.ended),
    "worker_state": (worker.c.pool, worker.c.state),
    "worker_study": (worker.c.study_id,),
}
for _name, _columns in _INDEXES.items():
    sa.Index(f"ix_{PREFIX}{_name}", *_columns)
for _column in (trial.c.owner, trial.c.desired_worker):
    _known = _column.is_not(None)
    sa.Index(
        f"ix_{PREFIX}trial_{_column.name}", _column, postgresql_where=_known, sqlite_where=_known
    )


def columns_of(
    table: sa.Table, record: type[Any], **renamed: str
) -> tuple[sa.ColumnElement[Any], ...]:
    """The columns with the fields of a record, in their order.

    Args:
        table: The table.
        record: A dataclass or a named tuple; a field without a column is left out.
        renamed: The columns of fields whose names differ.
    """
    names = [renamed.get(name, name) for name in record.__annotations__]
    return tuple([table.c[name] for name in names if name in table.c])


def check_length(what: str, name: str, length: int) -> None:
    """Raise an error for a name that is too long for the database.

    Raises:
        DeadlineError: It is too long.
    """
    if len(name) > length:
        raise DeadlineError(
            f"The {what}'s name has {len(name):,} characters, and the limit is {length:,}: "
            "give a shorter one."
        )
