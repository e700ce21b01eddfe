"""One result as a value, and the settings of the measurements."""

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
    """One result.

    Attributes:
        name: A description of the result.
        system: The system of the paper.
        paper: The paper's figure, or its derivation in words; None if unknown.
        ours: The measured figure; None if it could not be measured.
        target: The target, in words; empty for a row that has none.
        met: Whether the target was met; None without a target, and where the difference is
            within one standard error.
        note: The error bar, a shortfall with its reason, or missing data.
    """

    name: str
    system: str
    paper: float | str | None
    ours: float | None
    target: str
    met: bool | None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Our figure divided by the paper's, if both are numbers."""
        if self.ours is None or not isinstance(self.paper, (int, float)) or self.paper == 0:
            return None
        return self.ours / self.paper


@dataclass(frozen=True)
class Options:
    """The settings of a measurement.

    Attributes:
        data: The folder of recorded data, if given.
        quick: Use fewer seeds; every row is measured nevertheless.
        jobs: The number of processes.
        pictures: The folder for pictures, if wanted.
        progress: Shows the progress.
    """

    data: Path | None
    quick: bool
    jobs: int
    pictures: Path | None
    progress: Progress

    def folder(self, name: str) -> Path | None:
        """One folder of the recorded data; None if it does not exist."""
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
    """A module of this package that measures one system."""

    def rows(self, options: Options) -> Iterator[Row]:
        """Yield each result of the system once it is measured."""
