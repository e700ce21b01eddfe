"""Run many simulated studies in processes, with a line of progress."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import track

from optuna_deadline._garbage import collect_seldom
from optuna_deadline.simulation.comparison import Runnable, run_all

Found = TypeVar("Found")


def simulate_all(studies: Sequence[Runnable[Found]], jobs: int) -> Iterator[Found]:
    """The results in the order of the studies; progress is shown if stderr is a terminal."""
    collect_seldom()
    screen = Console(stderr=True)
    yield from track(
        run_all(studies, jobs),
        f"Simulating {len(studies)} studies",
        total=len(studies),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )
