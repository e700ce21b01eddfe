"""Many simulated studies, with a line that says how many are done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import track

from optuna_deadline.simulation.comparison import Runnable, collect_seldom, run_all

Found = TypeVar("Found")


def simulate_all(studies: Sequence[Runnable[Found]], jobs: int) -> Iterator[Found]:
    """Their results in their order; progress is shown where stderr is a terminal."""
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
