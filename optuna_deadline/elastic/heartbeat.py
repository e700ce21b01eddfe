"""A file that shows that a worker's loop runs, for supervisors that restart hung processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from optuna_deadline.errors import DeadlineError

#: Names the file.
HEARTBEAT_VARIABLE = "OPTUNA_DEADLINE_PULSE"
_HEARTBEAT_SECONDS = 1.0  # seconds between two beats


@contextmanager
def heartbeat_file(
    path: str | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[], None]]:
    """What to call in each round: it touches the file, which is there only meanwhile.

    It says nothing of the database: a worker that cannot reach it minds its leases by itself.

    Args:
        path: The file; by default the variable's, or none.
        clock: Tells the seconds.

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
            with suppress(OSError):  # a full disk is no reason to stop
                file.touch()

    try:
        yield beat
    finally:
        file.unlink(missing_ok=True)
