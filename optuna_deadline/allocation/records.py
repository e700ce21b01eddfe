"""Rows of the table as frozen values; those that come by the thousand are tuples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from optuna_deadline.checkpoints.storage import Location

#: States in which a trial can still be trained.
ALIVE = ("ready", "running", "paused")

#: Workers besides the first that give slots to a gang, and how many each.
OtherWorkers = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class MachineInfo:
    """What a worker says of the machine that it is on; None where it does not know."""

    machine: str | None = None  #: of the running kernel: two machines never share one
    store: str | None = None  #: the folder or URL that it keeps checkpoints in, known anywhere
    versions: str | None = None  #: as "optuna-deadline 0.1.0, torch 2.13.0"
    uuids: Mapping[str, str] = field(default_factory=dict)  #: of its GPUs, by device
    #: Under which other hosts reach it; None where it is to be in no gang with them.
    address: str | None = None
    host_type: str | None = None  #: by which its slots are priced; the audit alone keeps it
    boot: str | None = None  #: of which boot its process id is, and since when


@dataclass(frozen=True)
class Worker:
    """An agent's incarnation: a new one for each process."""

    id: str
    pool: str
    study_id: int
    host: str
    pid: int
    state: str
    lease: float
    drained: float | None = None  #: since when it is to give up its slots and leave
    machine: str | None = None  #: as in :class:`MachineInfo`, and the next two likewise
    store: str | None = None
    versions: str | None = None
    address: str | None = None
    boot: str | None = None


class CheckpointOrigin(NamedTuple):
    """Where a checkpoint was written, and so which hosts reach it."""

    id: int  #: of the checkpoint's row
    number: int  #: of its trial
    path: Location
    host: str | None  #: None if unknown
    store: str | None
    state: str | None = None  #: of the worker that wrote it: live, left or lost
    at: float = 0.0  #: when it was written, where rows may appear late


@dataclass(frozen=True)
class Slot:
    """A GPU or a share of the CPU: its offers and its holder."""

    id: int
    host: str
    device: str
    pool: str
    lent_to: int | None  #: the study that may take it
    fence: int
    holder: str | None
    study_id: int | None  #: the study that it is held for
    number: int | None
    lease: float | None
    offered_by: tuple[str, ...] = ()  #: live workers of different studies, but drained ones
    uuid: str | None = None  #: of the GPU itself, where it is known


@dataclass(frozen=True)
class Roster:
    """A study's live workers with what they bring; a drained one brings nothing."""

    workers: list[Worker]
    offered: Mapping[str, int]  #: by worker, the slots that it offers; of one study, only one does
    #: By worker, those of them that are lent to the study, but those that are yet to be reaped.
    lent: Mapping[str, int]
    #: When the first lease ends on a slot that any worker of the study offers, or offered as it
    #: died; None where none is held.
    lease: float | None


@dataclass(frozen=True)
class StudyClaim:
    """What a study's planner says of it to the pool."""

    live: int  #: trials that can still be trained
    most: int  #: slots it could use now, were it alone
    done: float  #: slot-seconds trained so far
    remaining: float | None  #: slot-seconds it expects to train yet, where it can say


@dataclass(frozen=True)
class Tenant:
    """A study's place in a pool."""

    study_id: int
    name: str
    weight: float
    joined: float
    deadline: float
    claim: StudyClaim | None  #: None until its planner has said anything
    served: float  #: slot-seconds lent to it since it joined
    entitled: float  #: slot-seconds of its fair share since it joined


@dataclass(frozen=True)
class PlannedTrial:
    """What the plan wants of one trial, beside what is."""

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
    held: float | None = None  #: since when a person wants it to have no slots
    pinned: int | None = None  #: the size that a person wants its gang to have
    batch: int | None = None  #: what the size of its gang is to divide
    slot_limit: int | None = None  #: the most slots that it can train on
    limit_reason: str | None = None  #: why, in one sentence
    pausable: bool | None = None  #: False once its objective has reported without its segment
    others: OtherWorkers = ()  #: of its slots, those of further workers

    @property
    def alive(self) -> bool:
        """Whether the trial can still be trained."""
        return self.state in ALIVE


@dataclass(frozen=True)
class GangPart:
    """What a further worker gives to a gang: it holds these slots and runs their ranks."""

    worker: str
    first_rank: int  #: rank
    slots: tuple[tuple[int, int], ...]  #: (slot id, fence)
    devices: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many ranks it runs."""
        return len(self.slots)


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks of a gang that crosses workers find each other, and what they go on from."""

    address: str
    port: int  #: for their own rendezvous
    link_port: int  #: the port where the leader takes the ranks' messages
    key: str = field(repr=False)  #: gives access to it
    resume_location: str | None = None  #: the checkpoint's location


@dataclass(frozen=True)
class GangMembership:
    """A part of a gang, as the worker that gives it and the trial's owner read it."""

    number: int
    trial_id: int
    fence: int
    leader: str  #: the worker that owned the trial when it was granted
    size: int  #: of the whole gang
    part: GangPart
    active: bool  #: whether the trial is its leader's still, under this fence
    rendezvous: Rendezvous | None = None  #: None until the leader has said it


@dataclass(frozen=True)
class Grant:
    """A segment that may start: its trial, its slots with their fences, its own fence."""

    number: int
    trial_id: int
    fence: int
    slots: tuple[tuple[int, int], ...]  #: (slot id, fence)
    devices: tuple[str, ...]
    others: tuple[GangPart, ...] = ()  #: those of further workers

    @property
    def size(self) -> int:
        """How many slots the gang has."""
        return len(self.slots) + sum([part.size for part in self.others])


@dataclass(frozen=True)
class Renewal:
    """The answer to a renewal: which slots are still ours."""

    now: float
    kept: frozenset[tuple[int, int]]
    #: Slots that the worker still brings: a silent one's may go to a newcomer. None where the
    #: worker's row went with its study.
    offers: int | None


@dataclass(frozen=True)
class Orders:
    """What a worker reads at each poll."""

    now: float
    deadline: float
    settled: bool
    epoch: int
    trials: tuple[PlannedTrial, ...]
    pool_slots: int | None = None  #: slots that the study pays for; None before the first plan
    funds_end: float | None = None  #: when its budget is used up; None where slots cost nothing
    drained: bool = False  #: whether the worker is to give up its slots and leave
    in_gangs: bool = False  #: whether it gives slots to a gang that another worker leads
    gate_open: bool = True  #: whether new trials may start

    @property
    def end(self) -> float:
        """When all training ends: at the deadline, or earlier where the money does not last."""
        return self.deadline if self.funds_end is None else min(self.deadline, self.funds_end)


class Assignment(NamedTuple):
    """One line of a placed plan: what a trial shall do, where, and why."""

    number: int
    mode: str  #: run, pause, stop
    worker: str | None
    slots: int
    reason: str
    others: OtherWorkers = ()  #: of these slots, those of further workers


class SegmentRow(NamedTuple):
    """One stretch of training, with what it cost and how fast it went."""

    number: int
    fence: int
    slots: int
    granted: float
    ended: float | None
    outcome: str | None
    startup: float | None
    stop: float | None
    position_from: float | None
    position_to: float | None
    trained: float | None
    workers: int = 1  #: more than one for a gang that crosses them

    @property
    def stepped(self) -> bool:
        """Whether it has trained a step."""
        begin, end = self.position_from, self.position_to
        return begin is not None and end is not None and end > begin


class NewReport(NamedTuple):
    """A report as its segment makes it."""

    step: int
    value: float
    trained: float  #: seconds of training over all segments


class ReportRow(NamedTuple):
    """One report of one trial."""

    id: int
    number: int
    step: int
    value: float
    slots: int
    trained: float
    at: float


@dataclass(frozen=True)
class Event:
    """One line of the audit: every transition writes one in its own transaction."""

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
