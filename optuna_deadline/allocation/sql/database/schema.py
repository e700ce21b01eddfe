"""The tables, beside Optuna's in the study's own database.

One row per physical slot makes "at most one holder" a primary-key fact: nothing is counted.
Desired (``trial.desired_*``, written by the study's planner, and ``slot.lent_to``, written by the
pool's leader), granted (``slot.holder``, changed only by fenced transitions) and believed (a
worker's own trust) are kept apart. What people ask for (``trial.held``, ``trial.pinned``,
``worker.drained``) stands beside what they ask it of. Times are seconds since the epoch by the
database's clock; a NaN is stored as NULL, since SQLite knows no NaN.

No row refers to Optuna's own tables from inside our transactions but ``study``: a foreign key
taken while training runs would make Optuna's ``ask()`` wait for us.
"""

from __future__ import annotations

import sqlalchemy as sa

from optuna_deadline.errors import DeadlineError

PREFIX = "optuna_deadline_"
POLICY_LENGTH, POOL_LENGTH = 1024, 512  # characters
metadata = sa.MetaData()


def _table(name: str, *columns: sa.schema.SchemaItem) -> sa.Table:
    return sa.Table(PREFIX + name, metadata, *columns)


def _study_id(**kwargs: bool) -> sa.Column[int]:
    reference = sa.ForeignKey(f"{PREFIX}study.study_id", ondelete="CASCADE")
    return sa.Column("study_id", sa.Integer, reference, **kwargs)  # type: ignore[arg-type]


def _wider(before_15: int, length: int) -> sa.types.TypeEngine[str]:
    # Since version 15; SQLite keeps texts of any length, and cannot change a column's type.
    return sa.String(before_15).with_variant(sa.String(length), "postgresql")


def _row_id() -> sa.Column[int]:
    # SQLite numbers rows by itself only where the key is spelled INTEGER.
    kind = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return sa.Column("id", kind, primary_key=True, autoincrement=True)


version = _table(
    "version",
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
)

study = _table(
    "study",
    # Optuna's id where our tables stand beside Optuna's; our own number where `table=` is given.
    sa.Column("study_id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(512), unique=True, nullable=False),
    sa.Column("direction", sa.String(16), nullable=False),
    sa.Column("started", sa.Double, nullable=False),
    sa.Column("deadline", sa.Double, nullable=False),
    sa.Column("duration", sa.Double),  # seconds, where the user gave a duration
    sa.Column("policy", _wider(64, POLICY_LENGTH), nullable=False),  # a name, or a file and a name
    sa.Column("parameters", sa.Text, nullable=False),  # JSON
    sa.Column("gate_closed", sa.Double),  # when no new trial may start any more
    sa.Column("settled", sa.Double),  # when winner and losers were told
    # Since version 4; all NULL where slots cost nothing.
    sa.Column("money", sa.Text),  # JSON: the budget and the price
    sa.Column("pool_slots", sa.Integer),  # slots of the pool that the study pays for
    sa.Column("funds_end", sa.Double),  # when the budget is used up, at that size
    # Since version 12: random, so that studies of the same name differ.
    sa.Column("key", sa.String(36)),
    # JSON: deadlines that held before; of each the duration, if one was given, and the instant.
    sa.Column("earlier", sa.Text),
    sa.Column("max_slots", sa.Integer),  # of a trial; NULL for any number
    sa.Column("rule", sa.String(16)),  # of plain studies; NULL for that of versions before 14
)

rung = _table(
    "rung",
    _study_id(primary_key=True),
    sa.Column("rung", sa.Integer, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("value", sa.Double),
    # Since version 14: rows that came later have larger ones, so that a process reads each once.
    sa.Column("sequence", sa.Integer),
)

#: How many values a rung has: a trigger counts them at each insert, so that no query has to.
rung_total = _table(
    "rung_total",
    _study_id(primary_key=True),
    sa.Column("rung", sa.Integer, primary_key=True),
    sa.Column("total", sa.Integer, nullable=False),
)

pool = _table(
    "pool",
    sa.Column("name", _wider(255, POOL_LENGTH), primary_key=True),  # by default that of a study
    sa.Column("epoch", sa.BigInteger, nullable=False),  # +1 with each plan written
    sa.Column("ttl", sa.Double, nullable=False),
    sa.Column("grace", sa.Double, nullable=False),
)

#: The divider of a pool's slots among its studies.
leader = _table(
    "leader",
    sa.Column("pool", sa.ForeignKey(f"{PREFIX}pool.name", ondelete="CASCADE"), primary_key=True),
    sa.Column("holder", sa.String(36)),
    sa.Column("term", sa.BigInteger, nullable=False),  # never reset: the row is kept
    sa.Column("expires", sa.Double, nullable=False),
)

#: A study's place in a pool, and its planner.
tenant = _table(
    "tenant",
    sa.Column("pool", sa.ForeignKey(f"{PREFIX}pool.name", ondelete="CASCADE"), primary_key=True),
    _study_id(primary_key=True),
    sa.Column("weight", sa.Double, nullable=False),
    sa.Column("joined", sa.Double, nullable=False),
    sa.Column("planner", sa.String(36)),
    sa.Column("term", sa.BigInteger, nullable=False),  # never reset: the row is kept
    sa.Column("expires", sa.Double, nullable=False),
    # What its planner says of it: trials alive, slots it could use, slot-seconds.
    sa.Column("live", sa.Integer, nullable=False),
    sa.Column("most", sa.Integer),  # NULL until its planner has said it
    sa.Column("done", sa.Double, nullable=False),
    sa.Column("remaining", sa.Double),
    # The pool's account of it, in slot-seconds, and until when it is kept.
    sa.Column("served", sa.Double, nullable=False),
    sa.Column("entitled", sa.Double, nullable=False),
    sa.Column("counted", sa.Double, nullable=False),
)

worker = _table(
    "worker",
    sa.Column("id", sa.String(36), primary_key=True),  # an incarnation: new per process
    sa.Column("pool", sa.ForeignKey(f"{PREFIX}pool.name", ondelete="CASCADE"), nullable=False),
    _study_id(nullable=False),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),  # live, left, lost
    sa.Column("registered", sa.Double, nullable=False),
    sa.Column("lease", sa.Double, nullable=False),
    # Since version 7: since when a person wants it to give up its slots and leave.
    sa.Column("drained", sa.Double),
    # Since version 8: what it said of its machine.
    sa.Column("machine", sa.String(64)),
    sa.Column("store", sa.Text),
    sa.Column("versions", sa.Text),
    sa.Column("address", sa.String(255)),  # since version 9: under which other hosts reach it
    sa.Column("boot", sa.String(64)),  # since version 12: of which boot `pid` is, since when
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
    sa.Column("lease", sa.Double),
    sa.Column("lent_to", sa.Integer),  # the study that may take it
    sa.Column("uuid", sa.String(64)),  # since version 8: of the GPU itself
    sa.UniqueConstraint("host", "device"),
    sa.CheckConstraint("(holder IS NULL) = (lease IS NULL)", name="held_means_leased"),
)

#: A slot belongs to its host, and a live worker of each study there may offer it.
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
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),  # +1 with each segment
    sa.Column("owner", sa.String(36)),
    sa.Column("desired_mode", sa.String(8), nullable=False),  # run, pause, stop
    sa.Column("desired_worker", sa.String(36)),
    sa.Column("desired_slots", sa.Integer, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("desired_since", sa.Double, nullable=False),
    sa.Column("horizon", sa.Integer),  # the last step the objective itself would train to
    sa.Column("value", sa.Double),  # what is to be told to Optuna
    sa.Column("told", sa.Boolean, nullable=False),
    sa.Column("failures", sa.Integer, nullable=False),
    # Since version 7, both at a person's request.
    sa.Column("held", sa.Double),  # since when it is to have no slots
    sa.Column("pinned", sa.Integer),  # the size that its gang is to have
    # Since version 9: JSON, the workers besides desired_worker and how many slots each gives.
    sa.Column("desired_others", sa.Text),
    # Since version 10: the size of its gang is to divide this.
    sa.Column("batch", sa.Integer),
    # Since version 12: the most slots that it can train on, and why.
    sa.Column("slot_limit", sa.Integer),
    sa.Column("limit_reason", sa.Text),
    # Since version 13: false once its objective has reported without asking for its segment.
    sa.Column("pausable", sa.Boolean),
)

segment = _table(
    "segment",
    _study_id(primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("fence", sa.BigInteger, primary_key=True),
    sa.Column("worker", sa.String(36), nullable=False),
    sa.Column("slots", sa.Integer, nullable=False),
    sa.Column("granted", sa.Double, nullable=False),
    sa.Column("ended", sa.Double),
    sa.Column("outcome", sa.String(16)),
    sa.Column("startup", sa.Double),  # seconds from the grant to the first step
    sa.Column("stop", sa.Double),  # seconds from the directive to the last rank's exit
    # How far the segment trained, in steps (fractions count), and the seconds that took.
    sa.Column("position_from", sa.Double),
    sa.Column("position_to", sa.Double),
    sa.Column("trained", sa.Double),
    sa.Column("workers", sa.Integer),  # since version 9: NULL where it is one
)

#: Of a gang that crosses workers, what each besides the owner gives; it deletes its row when its
#: ranks are gone. Its slots have it as their holder.
part = _table(
    "part",
    _study_id(primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("fence", sa.BigInteger, primary_key=True),  # the segment's
    sa.Column("worker", sa.String(36), primary_key=True),
    sa.Column("leader", sa.String(36), nullable=False),
    sa.Column("size", sa.Integer, nullable=False),  # of the whole gang
    sa.Column("first", sa.Integer, nullable=False),  # rank
    sa.Column("slots", sa.Text, nullable=False),  # JSON: pairs of slot and fence
    sa.Column("devices", sa.Text, nullable=False),  # JSON
)

#: Where the ranks of such a gang meet. The key gives access to them: keep viewers out.
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
    sa.Column("trained", sa.Double, nullable=False),  # seconds of training over all segments
    sa.Column("at", sa.Double, nullable=False),
    sa.UniqueConstraint("study_id", "number", "step"),
)

checkpoint = _table(
    "checkpoint",
    _row_id(),
    _study_id(nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("value", sa.Double),  # what this very state reported, if it did
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("checksum", sa.String(128), nullable=False),
    sa.Column("at", sa.Double, nullable=False),
)

event = _table(
    "event",
    _row_id(),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("pool", _wider(255, POOL_LENGTH)),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("study_id", sa.Integer),
    sa.Column("number", sa.Integer),
    sa.Column("slot", sa.Integer),
    sa.Column("fence", sa.BigInteger),
    sa.Column("term", sa.BigInteger),
    sa.Column("worker", sa.String(36)),
    sa.Column("detail", sa.Text),  # JSON
)

sa.Index(f"ix_{PREFIX}rung_value", rung.c.study_id, rung.c.rung, rung.c.value)
sa.Index(f"ix_{PREFIX}slot_holder", slot.c.holder)
sa.Index(f"ix_{PREFIX}offer_slot", offer.c.slot_id)
sa.Index(f"ix_{PREFIX}trial_state", trial.c.study_id, trial.c.state)
sa.Index(f"ix_{PREFIX}report_study", report.c.study_id, report.c.id)
sa.Index(f"ix_{PREFIX}checkpoint_trial", checkpoint.c.study_id, checkpoint.c.number)
sa.Index(f"ix_{PREFIX}event_pool", event.c.pool, event.c.id)

#: Columns that version 4 of the schema brought.
SINCE_4 = (study.c.money, study.c.pool_slots, study.c.funds_end)

#: Columns that version 7 of the schema brought.
SINCE_7 = (worker.c.drained, trial.c.held, trial.c.pinned)

#: Columns that version 8 of the schema brought.
SINCE_8 = (worker.c.machine, worker.c.store, worker.c.versions, slot.c.uuid)

#: Columns that version 9 of the schema brought.
SINCE_9 = (worker.c.address, trial.c.desired_others, segment.c.workers)

#: Columns that version 10 of the schema brought.
SINCE_10 = (trial.c.batch,)

#: Since version 11: a planner asks for its own study's workers.
SINCE_11 = sa.Index(f"ix_{PREFIX}worker_study", worker.c.study_id)

#: Columns that version 12 of the schema brought.
SINCE_12 = (
    study.c.key, worker.c.boot, study.c.earlier, study.c.max_slots,
    trial.c.slot_limit, trial.c.limit_reason,
)  # fmt: skip

#: Columns that version 13 of the schema brought.
SINCE_13 = (trial.c.pausable,)

#: Columns that version 14 of the schema brought.
SINCE_14 = (study.c.rule, rung.c.sequence)

#: Since version 14.
RUNG_SEQUENCE = sa.Index(f"ix_{PREFIX}rung_sequence", rung.c.study_id, rung.c.sequence)

#: Since version 5 without the slot's provider.
SLOT_POOL = sa.Index(f"ix_{PREFIX}slot_pool", slot.c.pool)

#: Indexes that version 3 of the schema brought.
SINCE_3 = (
    sa.Index(f"ix_{PREFIX}event_study", event.c.study_id, event.c.id),
    sa.Index(f"ix_{PREFIX}segment_ended", segment.c.study_id, segment.c.ended),
    sa.Index(f"ix_{PREFIX}worker_state", worker.c.pool, worker.c.state),
    *(
        sa.Index(
            f"ix_{PREFIX}trial_{column.name}",
            column,
            postgresql_where=column.is_not(None),
            sqlite_where=column.is_not(None),
        )
        for column in (trial.c.owner, trial.c.desired_worker)
    ),
)


def check_length(what: str, name: str, length: int) -> None:
    """Refuse a name that the database does not keep.

    Raises:
        DeadlineError: It is too long.
    """
    if len(name) > length:
        raise DeadlineError(
            f"The {what}'s name has {len(name):,} characters, and the limit is {length:,}: "
            "give a shorter one."
        )
