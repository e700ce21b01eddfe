"""A simulated world: its time, its table, and stand-ins for all else: trials, a disk, a bill."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from optuna_deadline.allocation.records import PlannedTrial, ReportRow
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.checkpoints.storage import Location
from optuna_deadline.planning.billing.budget import BudgetAccount
from optuna_deadline.planning.trials import TrialParameters
from optuna_deadline.simulation.clock import Timeline
from optuna_deadline.simulation.cluster import Cluster, Provider
from optuna_deadline.simulation.workload import Workload


@dataclass
class CountedTrials:
    """Trials without Optuna: a trial's parameters are its index in the workload."""

    opened: int = 0
    ends: dict[int, str] = field(default_factory=dict)  #: by trial, its reported state

    asked: dict[int, Mapping[str, Any]] = field(default_factory=dict)  #: parameters by trial
    #: reads the parameters of all trials; the world sets it
    parameters: Callable[[], Mapping[int, TrialParameters]] = dict

    def open(self, params: Mapping[str, Any] | None = None) -> tuple[int, int]:
        """Open the next trial."""
        if params is not None:
            self.asked[self.opened] = params
        self.opened += 1
        return self.opened - 1, self.opened - 1

    def exhausted(self) -> bool:
        """False: there is always another configuration."""
        return False

    def end(self, planned: PlannedTrial, reports: Callable[[], list[ReportRow]]) -> None:
        """Record the end; the first one stays."""
        self.ends.setdefault(planned.number, planned.state)

    def drop(self, number: int) -> None:
        """Record the end of a trial that never comes to the table."""
        self.ends.setdefault(number, "retired")

    def end_strays(self, known: set[int]) -> None:
        """End trials that never came to the table."""
        for number in set(range(self.opened)) - known:
            self.drop(number)

    def configured_strays(self) -> list[tuple[int, int]]:
        """None: all configurations are numbers."""
        return []

    def ended_as_loser(self, planned: PlannedTrial) -> bool:
        """Whether it ended in a state that cannot win."""
        return self.ends.get(planned.number, "complete") != "complete"

    def feasibility(self, numbers: Collection[int] | None = None) -> dict[int, int]:
        """None: recorded curves have no constraints."""
        return {}


@dataclass
class Disk:
    """A file system that all hosts share, with the progress in each checkpoint."""

    positions: dict[Location, float] = field(default_factory=dict)
    _made: int = 0
    _free: list[Location] = field(default_factory=list)  # names of deleted files, for reuse

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
        """Delete a file if it exists."""
        if self.positions.pop(path, None) is not None:
            self._free.append(path)

    def has_checkpoint(self, checkpoint: Checkpoint) -> bool:
        """Whether the checkpoint can be loaded."""
        return checkpoint.path in self.positions


@dataclass
class SlotTime:
    """Slot-seconds by their use."""

    training: float = 0.0  #: steps
    redone: float = 0.0  #: steps that were repeated after a failure
    overhead: float = 0.0  #: starting, saving, leaving


class ProgressWriter(Protocol):
    """A segment whose progress is still to be written."""

    def write_progress(self) -> None:
        """Write it."""


class PeerWorker(Protocol):
    """A live worker, as other workers see it."""

    @property
    def is_elected(self) -> bool:
        """Whether its planner is elected."""

    def wake_planner(self) -> None:
        """Plan: a worker has joined, or a trial has reported or ended its segment."""

    def wake_poll(self) -> None:
        """Poll: the plan, the pool or the holder of a trial has changed."""

    def catch_up_elections(self) -> None:
        """Account for skipped elections."""

    def wake_all(self) -> None:
        """Do both: a worker has left or died."""

    def end_gangs_with(self, worker: str) -> None:
        """End gangs with slots of a dead worker."""


class ConfigurationSampler(Protocol):
    """Chooses the configuration of a new trial, as a sampler does."""

    def __call__(self, world: World, number: int) -> int:
        """The configuration of a trial that starts."""


@dataclass
class World:
    """The state that all simulated workers share."""

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
    #: segments with unwritten progress
    unwritten_segments: list[ProgressWriter] = field(default_factory=list)
    workers: dict[str, PeerWorker] = field(default_factory=dict)  #: live workers by id
    provider: Provider | None = None  #: buys nodes; None if slots are free
    budget_account: BudgetAccount | None = None  #: the budget, if slots cost money
    host_types: dict[str, str] = field(default_factory=dict)  #: prices by host, if they differ
    warm: set[int] = field(default_factory=set)  #: trials that have started
    search: ConfigurationSampler | None = None  #: None: configurations in their order
    configurations: dict[int, int] = field(default_factory=dict)  #: by trial
    started: float = 0.0
    weight: float | None = None  #: in the pool

    @property
    def latest(self) -> float:
        """The study has ended by then: dead hosts are reaped after the deadline too."""
        return self.deadline + 100 * (self.table.ttl + self.table.grace)

    def configuration(self, number: int) -> int:
        """The configuration of a trial; fixed when it starts."""
        if number not in self.configurations:
            if (params := self.trials.asked.get(number)) is not None:
                self.configurations[number] = self.workload.configuration_with(params)
            else:
                search = self.search or _in_order
                self.configurations[number] = search(self, number)
        return self.configurations[number]

    def __post_init__(self) -> None:
        self.trials.parameters = lambda: {
            number: TrialParameters(self.workload.params(index), {})
            for number, index in self.configurations.items()
        }

    def startup_of(self, number: int) -> float:
        """Seconds until a trial's segment trains if it starts now."""
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
    def make(
        cls,
        workload: Workload,
        cluster: Cluster,
        deadline: float,
        seed: int,
        *,
        timeline: Timeline | None = None,
        study_id: int = 1,
        beside: World | None = None,
    ) -> World:
        """A world that starts now, in the pool of another one if that is given."""
        timeline = timeline or Timeline()
        table = MemoryTable(
            study_id=study_id,
            now=timeline.now,
            started=timeline.now(),
            deadline=deadline,
            ttl=cluster.ttl,
            grace=cluster.grace,
            database=None if beside is None else beside.table.database,
        )
        return cls(workload, cluster, deadline, seed, timeline, table, started=timeline.now())


def _in_order(world: World, number: int) -> int:
    return world.workload.configuration(number)
