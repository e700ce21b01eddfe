"""What stands in for the world outside the table: the study's trials, a disk, a bill.

One simulated world: its time, its table, and what stands in for everything outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from optuna_deadline.allocation.memory.store import MemoryTable
from optuna_deadline.allocation.records import PlannedTrial, ReportRow
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.checkpoints.storage import Location
from optuna_deadline.planning.billing.budget import BudgetAccount
from optuna_deadline.simulation.clock import Timeline
from optuna_deadline.simulation.cluster import Cluster, Provider
from optuna_deadline.simulation.workload import Workload


@dataclass
class CountedTrials:
    """Trials that are numbers: a configuration's parameters are its index in the workload."""

    opened: int = 0
    ends: dict[int, str] = field(default_factory=dict)  #: trial -> the state it was told

    def open(self) -> tuple[int, int]:
        """Open the next trial."""
        self.opened += 1
        return self.opened - 1, self.opened - 1

    def exhausted(self) -> bool:
        """There is always another configuration."""
        return False

    def end(self, planned: PlannedTrial, reports: Callable[[], list[ReportRow]]) -> None:
        """Note the end; the first one stands."""
        self.ends.setdefault(planned.number, planned.state)

    def drop(self, number: int) -> None:
        """Note the end of a trial that never comes to the table."""
        self.ends.setdefault(number, "retired")

    def end_strays(self, known: set[int]) -> None:
        """End trials that never came to the table."""
        for number in set(range(self.opened)) - known:
            self.drop(number)

    def configured_strays(self, known: set[int]) -> list[tuple[int, int]]:
        """None: configurations are numbers."""
        return []

    def ended_as_loser(self, planned: PlannedTrial) -> bool:
        """As it was told."""
        return self.ends.get(planned.number, "complete") != "complete"


@dataclass
class Disk:
    """A file system that all hosts share: how far the training in each checkpoint has come."""

    positions: dict[Location, float] = field(default_factory=dict)
    _made: int = 0
    _free: list[Location] = field(default_factory=list)  # names of deleted files, to be used again

    def write(self, position: float) -> Location:
        """Write a checkpoint to a new file."""
        if self._free:
            path: Location = self._free.pop()
        else:
            self._made += 1
            path = Path(str(self._made))
        self.positions[path] = position
        return path

    def delete(self, path: Location) -> None:
        """Delete a file, if it is there."""
        if self.positions.pop(path, None) is not None:
            self._free.append(path)

    def has_checkpoint(self, checkpoint: Checkpoint) -> bool:
        """Whether the checkpoint can be loaded."""
        return checkpoint.path in self.positions


@dataclass
class SlotTime:
    """Slot-seconds as the workers spent them."""

    training: float = 0.0  #: steps were made
    redone: float = 0.0  #: of the training: steps that a failure made necessary again
    overhead: float = 0.0  #: started up, saved, left


class ProgressWriter(Protocol):
    """A segment, as long as its progress is to be written."""

    def write_progress(self) -> None:
        """Write it."""


class PeerWorker(Protocol):
    """A live worker, as the others see it."""

    @property
    def is_elected(self) -> bool:
        """Whether its planner is the elected one."""

    def wake_planner(self) -> None:
        """A worker has joined, or a trial has reported or ended its segment."""

    def wake_poll(self) -> None:
        """The plan, the pool or the holder of a trial was changed."""

    def catch_up_elections(self) -> None:
        """Do what was skipped so far."""

    def wake_all(self) -> None:
        """A worker has left or died."""

    def end_gangs_with(self, worker: str) -> None:
        """A worker has died, and gangs with it."""


class ConfigurationSampler(Protocol):
    """Chooses what a new trial trains, as a sampler does in life."""

    def __call__(self, world: World, number: int) -> int:
        """The configuration of the workload for a trial that begins."""


@dataclass
class World:
    """What every simulated worker shares."""

    workload: Workload
    cluster: Cluster
    deadline: float
    seed: int
    timeline: Timeline
    table: MemoryTable
    trials: CountedTrials = field(default_factory=CountedTrials)
    disk: Disk = field(default_factory=Disk)
    slot_time: SlotTime = field(default_factory=SlotTime)
    working_hosts: set[str] = field(default_factory=set)  #: hosts whose worker has not left
    #: whose progress is not written yet
    unwritten_segments: list[ProgressWriter] = field(default_factory=list)
    workers: dict[str, PeerWorker] = field(default_factory=dict)  #: the live ones, by their ids
    provider: Provider | None = None  #: brings the nodes, where these are bought
    budget_account: BudgetAccount | None = None  #: where slots cost money
    host_types: dict[str, str] = field(default_factory=dict)  #: where they cost it by host
    warm: set[int] = field(default_factory=set)  #: trials that began on their slots
    search: ConfigurationSampler | None = None  #: None takes the configurations in their order
    configurations: dict[int, int] = field(default_factory=dict)  #: by trial

    @property
    def latest(self) -> float:
        """The study has ended by then: dead hosts are reaped after the deadline too."""
        return self.deadline + 100 * (self.table.ttl + self.table.grace)

    def configuration(self, number: int) -> int:
        """What a trial trains; fixed when it begins."""
        if number not in self.configurations:
            search = self.search or _in_order
            self.configurations[number] = search(self, number)
        return self.configurations[number]

    def startup_of(self, number: int) -> float:
        """Seconds until a trial's segment trains, should it begin now."""
        if number in self.warm:
            self.warm.discard(number)
            return 0.0
        return self.cluster.startup

    def write_all_progress(self) -> None:
        """Write the progress of all segments before it is read."""
        for segment in self.unwritten_segments:
            segment.write_progress()
        self.unwritten_segments.clear()

    @classmethod
    def make(cls, workload: Workload, cluster: Cluster, deadline: float, seed: int) -> World:
        """A world at its beginning."""
        timeline = Timeline()
        table = MemoryTable(
            now=timeline.now, deadline=deadline, ttl=cluster.ttl, grace=cluster.grace
        )
        return cls(workload, cluster, deadline, seed, timeline, table)


def _in_order(world: World, number: int) -> int:
    return world.workload.configuration(number)
