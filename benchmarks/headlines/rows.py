"""One headline as a value, and the settings of each system's study."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from benchmarks.measuring import Progress
from optuna_deadline.simulation.comparison import work_through

Case = TypeVar("Case")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        name: What is shown, in words.
        system: Whose paper it is from.
        paper: The paper's figure, or what it is derived from in words; None where none is known.
        ours: What was measured now; None where it could not be.
        target: What was to be reached, in words.
        met: Whether it was.
        note: The error bar, what falls short and why, or which data is missing.
    """

    name: str
    system: str
    paper: float | str | None
    ours: float | None
    target: str
    met: bool
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours by the paper's, where both are numbers."""
        if self.ours is None or not isinstance(self.paper, (int, float)) or self.paper == 0:
            return None
        return self.ours / self.paper


@dataclass(frozen=True)
class Options:
    """How a system's headlines are to be measured.

    Attributes:
        data: The folder of recorded data, if one was given.
        quick: Fewer seeds; every row is there all the same.
        jobs: Processes to use.
        pictures: Where pictures go, if they are wanted.
        progress: One line for the terminal.
    """

    data: Path | None
    quick: bool
    jobs: int
    pictures: Path | None
    progress: Progress

    def folder(self, name: str) -> Path | None:
        """One folder of the recorded data, None where it is not there."""
        if self.data is None or not (self.data / name).is_dir():
            return None
        return self.data / name

    def map(
        self, work: Callable[[Case], Result], cases: list[Case], what: str
    ) -> Iterator[Result]:
        """Results in the order of the cases, computed in ``jobs`` processes, with progress."""
        self.progress.write_progress(f"{what}: 0 of {len(cases)}")
        for done, result in enumerate(work_through(work, cases, self.jobs), 1):
            self.progress.write_progress(f"{what}: {done} of {len(cases)}")
            yield result


class System(Protocol):
    """A module of this package that measures one system's headlines."""

    def rows(self, options: Options) -> Iterator[Row]:
        """Every headline of the system, each as soon as it is there."""
