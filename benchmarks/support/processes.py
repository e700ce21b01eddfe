"""Processes and their children, without psutil; and a watcher that outlives its owner.

Run as a script, this module is the watcher. It waits until its standard input ends or its parent
changes, one of which happens however the owner dies. Then it ends the server and deletes its
folder. It imports only the standard library, so that it starts quickly.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO


def alive(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        os.kill(pid, 0)
        return not _ended(pid)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True


def children(pid: int) -> list[int]:
    """The direct children of a process."""
    if Path("/proc/self/stat").exists():  # small containers have no ps
        parents = [(int(p.name), _stat(int(p.name))) for p in Path("/proc").glob("[0-9]*")]
        return [child for child, stat in parents if stat and int(stat[1]) == pid]
    table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True)
    rows = (line.split() for line in table.stdout.splitlines())
    return [int(child) for child, parent in rows if int(parent) == pid]


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to those processes that still exist."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def watch(owner: int, postmaster_file: Path, folder: Path) -> subprocess.Popen[bytes]:
    """Start the watcher; the owner keeps the returned process's ``stdin`` open."""
    arguments = [str(owner), str(postmaster_file), str(folder)]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # Ctrl-C in the owner's terminal must not reach it
    )


def _stat(pid: int) -> list[str]:
    """State, parent and further fields of a process from /proc; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _ended(pid: int) -> bool:
    stat = _stat(pid)
    return bool(stat) and stat[0] in "ZX"  # a zombie only waits for its parent


def _wait_for_owner(owner: int, pipe: IO[bytes]) -> None:
    # A fork of the owner may keep the pipe open after the owner's death, so check the parent too.
    while os.getppid() == owner:
        readable, _, _ = select.select([pipe], [], [], 0.5)
        if readable and not pipe.read(1):
            return


def _clean_up(postmaster_file: Path, folder: Path) -> None:
    try:
        pid = int(postmaster_file.read_text().split("\n")[0])
    except (OSError, ValueError):
        pid = 0  # it was stopped, or never started
    if pid and alive(pid):
        family = [pid, *children(pid)]
        signal_all(family, signal.SIGCONT)  # the owner may have died while they were paused
        signal_all([pid], signal.SIGQUIT)  # PostgreSQL's immediate stop: removes shared memory
        until = time.monotonic() + 3
        while alive(pid) and time.monotonic() < until:
            time.sleep(0.02)
        signal_all(family if alive(pid) else [], signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _wait_for_owner(int(sys.argv[1]), sys.stdin.buffer)
    _clean_up(Path(sys.argv[2]), Path(sys.argv[3]))
