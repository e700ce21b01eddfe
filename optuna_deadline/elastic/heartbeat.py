"""A file whose age shows that a worker's loop runs, for supervisors of processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from optuna_deadline.errors import DeadlineError

#: The environment variable with the path of the file.
HEARTBEAT_VARIABLE = "OPTUNA_DEADLINE_PULSE"
_HEARTBEAT_SECONDS = 1.0  # seconds between two beats


@contextmanager
def heartbeat_file(
    path: str | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[], None]]:
    """Yield a function that touches the file; the file is deleted when the block ends.

    The file does not show whether the database is reachable: without it, the worker stops its
    trials when their leases end.

    Args:
        path: The file; None takes the path from the environment variable, if it is set.
        clock: A monotonic clock, in seconds.

    Raises:
        DeadlineError: The file cannot be written.
    """
    path = os.environ.get(HEARTBEAT_VARIABLE) if path is None else path
    if not path:
        yield lambda: None
        return
    file, due = Path(path), clock() + _HEARTBEAT_SECONDS
    try:
        file.touch()
    except OSError as error:
        raise DeadlineError(
            f"{HEARTBEAT_VARIABLE} must name a file that this worker may write, but got {path!r}: "
            f"{error}."
        ) from None

    def beat() -> None:
        nonlocal due
        if clock() >= due:
            due = clock() + _HEARTBEAT_SECONDS
            with suppress(OSError):  # a full disk does not stop the worker
                file.touch()

    try:
        yield beat
    finally:
        file.unlink(missing_ok=True)
