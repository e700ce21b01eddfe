"""What stands in for the world outside the table: the study's trials, a disk, a bill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from optuna_deadline.allocation.records import Desired, ReportRow
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.checkpoints.storage import Location


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

    def end(self, line: Desired, reports: Callable[[], list[ReportRow]]) -> None:
        """Note the end; the first one stands."""
        self.ends.setdefault(line.number, line.state)

    def drop(self, number: int) -> None:
        """Note the end of a trial that never comes to the table."""
        self.ends.setdefault(number, "retired")

    def adopt_strays(self, known: set[int]) -> None:
        """End trials that never came to the table."""
        for number in set(range(self.opened)) - known:
            self.drop(number)

    def configured_strays(self, known: set[int]) -> list[tuple[int, int]]:
        """None: configurations are numbers."""
        return []

    def has_lost(self, line: Desired) -> bool:
        """As it was told."""
        return self.ends.get(line.number, "complete") != "complete"


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

    def holds(self, checkpoint: Checkpoint) -> bool:
        """Whether the checkpoint can be loaded."""
        return checkpoint.path in self.positions


@dataclass
class Bill:
    """Slot-seconds as the workers spent them."""

    training: float = 0.0  #: steps were made
    redone: float = 0.0  #: of the training: steps that a failure made necessary again
    overhead: float = 0.0  #: started up, saved, left
