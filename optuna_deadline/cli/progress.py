"""Progress of what lasts: shown once it has lasted two seconds, and never in a pipe."""

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


def show_late(items: Iterable[T], words: str, total: int) -> Iterator[T]:
    """The items, each as soon as it is there.

    Args:
        items: What takes time to come.
        words: What is being done.
        total: How many come at most.
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
def wait_late(words: str) -> Iterator[None]:
    """Say what is waited for, once it has lasted two seconds.

    Args:
        words: What is being done.
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
            late.join()  # it may have been about to begin
        status.stop()
