"""Rows of the table as frozen values; frequent ones are tuples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from optuna_deadline.checkpoints.storage import Location

#: States in which a trial can still be trained.
ALIVE = ("ready", "running", "paused")

#: Slots of a gang on each of its members.
OtherWorkers = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class MachineInfo:
    """A worker's description of its host; None for what is unknown."""

    machine: str | None = None  #: the kernel's boot id: unique to a machine
    store: str | None = None  #: its checkpoint store, a folder or a URL
    versions: str | None = None  #: as "optuna-deadline 0.1.0, torch 2.13.0"
    uuids: Mapping[str, str] = field(default_factory=dict)  #: of its GPUs, by device
    #: The address for other hosts; None if the worker is in no gang with them.
    address: str | None = None
    host_type: str | None = None  #: selects its price; only events keep it
    boot: str | None = None  #: the boot of its process id, and the process's start


@dataclass(frozen=True)
class Worker:
    """A worker process; a restarted worker has a new row."""

    id: str
    pool: str
    study_id: int
    host: str
    pid: int
    state: str
    lease: float
    drained: float | None = None  #: since when it is drained
    machine: str | None = None  #: as in :class:`MachineInfo`, and the next two likewise
    store: str | None = None
    versions: str | None = None
    address: str | None = None
    boot: str | None = None


class CheckpointOrigin(NamedTuple):
    """Where a checkpoint was written, and so which hosts reach it."""

    id: int  #: of the checkpoint's row
    number: int  #: the trial's number
    path: Location
    host: str | None  #: None if unknown
    store: str | None
    state: str | None = None  #: state of the worker that wrote it: live, left or lost
    at: float = 0.0  #: when it was written; rows may appear late


@dataclass(frozen=True)
class Slot:
    """A GPU or a share of the CPU, with its offers and its holder."""

    id: int
    host: str
    device: str
    pool: str
    lent_to: int | None  #: the study that it is lent to
    fence: int
    holder: str | None
    study_id: int | None  #: the study of its holder
    number: int | None
    lease: float | None
    offered_by: tuple[str, ...] = ()  #: live workers of different studies that are not drained
    uuid: str | None = None  #: UUID of the GPU, if known


@dataclass(frozen=True)
class Roster:
    """A study's live workers and the slots that they offer; drained ones offer none."""

    workers: list[Worker]
    offered: Mapping[
        str, int
    ]  #: by worker, the slots that it offers; one worker per study and slot
    #: By worker, those of them that are lent to the study and not due to be reaped.
    lent: Mapping[str, int]
    #: When the first lease ends on a slot that any worker of the study offers, or offered as it
    #: died; None if no slot is held.
    lease: float | None


@dataclass(frozen=True)
class StudyClaim:
    """A planner's claim for its study."""

    live: int  #: trials that can still be trained
    most: int  #: slots that the study could use if it were alone
    done: float  #: slot-seconds trained so far
    remaining: float | None  #: expected further slot-seconds, if known
    #: slot-seconds that have to be done, 0 while that is not known; None for a search
    work: float | None = None
    span: float = 0.0  #: seconds that its longest trial still needs on one slot
    restart: float = 0.0  #: seconds that a trial loses if it moves


class Account(NamedTuple):
    """What a study of a pool has in a second; nothing by default."""

    slots: int = 0  #: lent to it
    rate: float = 0.0  #: slots that the divider gives it, in fractions
    spending: float = 0.0  #: the part of its purse that this costs


@dataclass(frozen=True)
class Tenant:
    """A study in a pool."""

    study_id: int
    name: str
    weight: float
    joined: float
    deadline: float
    claim: StudyClaim | None  #: None before its first claim
    served: float  #: slot-seconds lent to it since it joined
    entitled: float  #: slot-seconds of its rate since it joined
    spent: float  #: the part of its purse that it has spent since it joined
    counted: float  #: until when these accounts are up to date
    direction: str = "minimize"  #: of its values


@dataclass(frozen=True)
class PlannedTrial:
    """A trial's row: its planned and its present state."""

    number: int
    trial_id: int
    state: str
    fence: int
    owner: str | None
    mode: str
    worker: str | None
    slots: int
    reason: str
    since: float
    horizon: int | None
    value: float | None
    end_reported: bool
    failures: int
    held: float | None = None  #: since when a user holds it
    pinned: int | None = None  #: the gang size that a user has pinned
    batch: int | None = None  #: the batch that its gang size must divide
    slot_limit: int | None = None  #: the most slots that it can train on
    limit_reason: str | None = None  #: the reason for the plan, in one sentence
    pausable: bool | None = None  #: False once it has reported without its segment
    others: OtherWorkers = ()  #: slots of other workers among them
    parent: int | None = None  #: the trial whose checkpoint it starts from

    @property
    def alive(self) -> bool:
        """Whether the trial can still be trained."""
        return self.state in ALIVE

    @property
    def shown_state(self) -> str:
        """The state in Optuna's words."""
        return "pruned" if self.state == "retired" else self.state


@dataclass(frozen=True)
class GangPart:
    """A member's part of a gang: it holds these slots and runs their ranks."""

    worker: str
    first_rank: int  #: the first rank
    slots: tuple[tuple[int, int], ...]  #: (slot id, fence)
    devices: tuple[str, ...]

    @property
    def size(self) -> int:
        """The number of its ranks."""
        return len(self.slots)


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks of a gang over several workers meet, and what they resume from."""

    address: str
    port: int  #: of the ranks' own process group
    link_port: int  #: the port where the leader accepts the ranks' messages
    key: str = field(repr=False)  #: the shared secret
    resume_location: str | None = None  #: the checkpoint's location


@dataclass(frozen=True)
class GangMembership:
    """A part of a gang, as its member and the trial's owner read it."""

    number: int
    trial_id: int
    fence: int
    leader: str  #: the owner of the trial when it was granted
    size: int  #: the whole gang's
    part: GangPart
    active: bool  #: whether the owner still has the trial under this fence
    rendezvous: Rendezvous | None = None  #: None until the leader publishes it


@dataclass(frozen=True)
class Grant:
    """A segment that may start: its trial, its slots and the fences of both."""

    number: int
    trial_id: int
    fence: int
    slots: tuple[tuple[int, int], ...]  #: (slot id, fence)
    devices: tuple[str, ...]
    others: tuple[GangPart, ...] = ()  #: slots of other workers

    @property
    def size(self) -> int:
        """The number of slots of the gang."""
        return len(self.slots) + sum([part.size for part in self.others])


@dataclass(frozen=True)
class Renewal:
    """The answer to a renewal: the slots that the worker still holds."""

    now: float
    kept: frozenset[tuple[int, int]]
    #: Slots that the worker still offers; others may take those of a silent worker. None if the
    #: worker's row is gone with its study.
    offers: int | None


@dataclass(frozen=True)
class Orders:
    """What a worker reads at each poll."""

    now: float
    started: float  #: when the study began, by the database's clock as it is now
    deadline: float
    settled: bool
    epoch: int
    trials: tuple[PlannedTrial, ...]
    pool_slots: int | None = None  #: slots that the study pays for; None before the first plan
    funds_end: float | None = None  #: when its budget is used up; None if slots are free
    drained: bool = False  #: whether the worker is drained
    in_gangs: bool = False  #: whether it gives slots to a gang of another worker
    gate_open: bool = True  #: whether new trials may start
    clock_step: float = 0.0  #: by how many seconds start and ends are later than they are stored

    @property
    def end(self) -> float:
        """When all training ends: at the deadline, or earlier if the money does not last."""
        return self.deadline if self.funds_end is None else min(self.deadline, self.funds_end)


class Assignment(NamedTuple):
    """One line of a placed plan: what a trial does, where, and why."""

    number: int
    mode: str  #: run, pause, stop
    worker: str | None
    slots: int
    reason: str
    others: OtherWorkers = ()  #: slots of other workers among them


class SegmentRow(NamedTuple):
    """A stretch of training, with its cost and its speed."""

    number: int
    fence: int
    slots: int
    granted: float
    ended: float | None = None
    outcome: str | None = None
    startup: float | None = None
    stop: float | None = None
    position_from: float | None = None
    position_to: float | None = None
    trained: float | None = None
    workers: int = 1  #: more than one for a gang over several hosts
    validated: float | None = None  #: seconds of validations
    waited: float | None = None  #: seconds of waiting for plans

    @property
    def stepped(self) -> bool:
        """Whether it has trained a step."""
        begin, end = self.position_from, self.position_to
        return begin is not None and end is not None and end > begin


class NewReport(NamedTuple):
    """A report as its segment sends it."""

    step: int
    value: float
    trained: float  #: seconds of training over all segments
    regime: str | None = None  #: the regime that begins after the report before, if one does


class ReportRow(NamedTuple):
    """One report of one trial."""

    id: int
    number: int
    step: int
    value: float
    slots: int
    trained: float
    at: float
    regime: str | None = None  #: the regime that begins after the report before, if one does


@dataclass(frozen=True)
class Event:
    """One event: every transition writes one in its own transaction."""

    id: int
    at: float
    kind: str
    number: int | None
    slot: int | None
    fence: int | None
    term: int | None
    worker: str | None
    detail: dict[str, object]
    study_id: int | None = None
