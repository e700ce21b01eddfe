"""Shows a study while it runs: a live view on a terminal, plain lines in a pipe."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.live import Live

from optuna_deadline.cli.live import lines, render
from optuna_deadline.cli.view import View
from optuna_deadline.cli.watching import Watcher
from optuna_deadline.workers.errors import DATABASE_AWAY

_SECONDS = 0.5


@contextmanager
def shown(watcher: Watcher, console: Console) -> Iterator[None]:
    """Keep the study in sight until the block ends, last state included."""
    ending = threading.Event()
    follow = _on_terminal if console.is_terminal else _in_lines
    thread = threading.Thread(target=follow, args=(watcher, console, ending), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join(timeout=10)


def _on_terminal(watcher: Watcher, console: Console, ending: threading.Event) -> None:
    with Live(console=console, auto_refresh=False) as live:
        going = True
        while going:
            going = not ending.wait(_SECONDS)
            with suppress(*DATABASE_AWAY):
                live.update(render(watcher.view(), console.height - 1), refresh=True)


def _in_lines(watcher: Watcher, console: Console, ending: threading.Event) -> None:
    previous: View | None = None
    going = True
    while going:
        going = not ending.wait(_SECONDS)
        with suppress(*DATABASE_AWAY):
            view = watcher.view()
            for line in lines(previous, view):
                console.print(line, highlight=False, markup=False, soft_wrap=True)
            previous = view
