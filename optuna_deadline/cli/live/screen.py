"""Shows a study while it runs: a live view on a terminal, plain lines in a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

from rich.console import Console
from rich.live import Live

from optuna_deadline.cli.live.following import following
from optuna_deadline.cli.live.top import lines, render
from optuna_deadline.cli.live.view import View
from optuna_deadline.cli.live.watching import Watcher

_SECONDS = 0.5


def shown(watcher: Watcher, console: Console) -> AbstractContextManager[None]:
    """Keep the study in sight until the block ends, last state included."""

    def on_terminal(looks: Iterator[View]) -> None:
        with Live(console=console, auto_refresh=False) as live:
            for view in looks:
                live.update(render(view, console.height - 1), refresh=True)

    def in_lines(looks: Iterator[View]) -> None:
        previous: View | None = None
        for view in looks:
            for line in lines(previous, view):
                console.print(line, highlight=False, markup=False, soft_wrap=True)
            previous = view

    return following(watcher, _SECONDS, on_terminal if console.is_terminal else in_lines)
