"""Helpers of the checks: rows of the table, and the processes on each GPU from the driver."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_POLL = 0.2

#: The check, its figure (None if it could not be measured), and whether it is good.
Row = dict[str, Any]


def row(check: str, figure: float | str | None, good: bool) -> Row:
    """One line of the table."""
    return {"check": check, "figure": figure, "good": good}


def median(seconds: Sequence[float]) -> float | None:
    """The median; None without values."""
    return round(statistics.median(seconds), 3) if seconds else None


@contextmanager
def users_of_gpus() -> Iterator[list[dict[str, int]]]:
    """Polls the driver for the number of our processes that compute on each GPU."""
    seen: list[dict[str, int]] = []
    over = threading.Event()

    def look() -> None:
        query = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"]
        while not over.wait(_POLL):
            output = subprocess.run(query, capture_output=True, text=True, timeout=30).stdout
            lines = {line for line in output.splitlines() if line.strip()}
            seen.append(_counted(line.partition(",") for line in lines))

    thread = threading.Thread(target=look, daemon=True)
    if shutil.which("nvidia-smi"):
        thread.start()
    try:
        yield seen
    finally:
        over.set()
        if thread.ident is not None:
            thread.join()


def most_at_once(users: Sequence[dict[str, int]]) -> int | None:
    """The maximum number on one GPU; None without a poll."""
    if not users:
        return None
    return max((count for look in users for count in look.values()), default=0)


def _counted(rows: Iterable[tuple[str, str, str]]) -> dict[str, int]:
    found = [(gpu, int(pid)) for gpu, _, pid in rows if pid.strip().isdigit()]
    # In some containers the driver's process numbers are not valid inside; then all count.
    seen = any(Path(f"/proc/{pid}").exists() for _, pid in found)
    return Counter(gpu for gpu, pid in found if not seen or _ours(pid))


def _ours(pid: int) -> bool:
    """Whether a process descends from this one."""
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return False
        pid = int(status.partition("PPid:")[2].split()[0])
    return False
