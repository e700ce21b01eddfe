"""What a command shows while it works."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from rich.progress import Progress

from optuna_deadline.cli.app import console

T = TypeVar("T")

_QUIET = 2.0  # seconds


def show_when_slow(items: Iterable[T], words: str, total: int) -> Iterator[T]:
    """Yield items as they come, with a progress bar after two seconds on a terminal.

    Args:
        items: The items.
        words: A description of the work.
        total: The maximum number of items.
    """
    began = time.monotonic()
    progress: Progress | None = None
    with ExitStack() as stack:
        for done, item in enumerate(items, 1):
            if progress is None and console.is_terminal and time.monotonic() - began > _QUIET:
                progress = stack.enter_context(Progress(console=console, transient=True))
                task = progress.add_task(words, total=total)
            if progress is not None:
                progress.update(task, completed=done)
            yield item


@contextmanager
def show_wait(words: str) -> Iterator[None]:
    """Show a description of the work after two seconds on a terminal.

    Args:
        words: The description.
    """
    status = console.status(words)
    late = threading.Timer(_QUIET, status.start)
    late.daemon = True
    if console.is_terminal:
        late.start()
    try:
        yield
    finally:
        late.cancel()
        if late.ident is not None:
            late.join()  # it may be about to start
        status.stop()
