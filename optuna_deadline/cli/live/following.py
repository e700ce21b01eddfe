"""Looks at a study beside whatever else this process does, until that ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from optuna_deadline.cli.live.view import View
from optuna_deadline.cli.live.watching import Watcher
from optuna_deadline.errors import StudyGone
from optuna_deadline.worker.errors import DATABASE_AWAY


@contextmanager
def following(
    watcher: Watcher, seconds: float, follow: Callable[[Iterator[View]], None]
) -> Iterator[None]:
    """Give a thread a look every so often until the block ends, the last state included.

    A block that ends by an error is followed no further: its database may be away.
    """
    ending = threading.Event()
    looks = _looks(watcher, seconds, ending)
    thread = threading.Thread(target=follow, args=(looks,), daemon=True)
    thread.start()
    patience = 0.5
    try:
        yield
        patience = 10.0
    finally:
        ending.set()
        thread.join(patience)


def _looks(watcher: Watcher, seconds: float, ending: threading.Event) -> Iterator[View]:
    """Views, none while the database is away nor once the study was deleted."""
    going = True
    while going:
        going = not ending.wait(seconds)
        try:
            view = watcher.view()
        except DATABASE_AWAY:
            continue
        except StudyGone:
            return  # the worker says so
        yield view
