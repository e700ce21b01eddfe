"""Which process a worker is, and whether it has ended with all its ranks: seen from its own host.

A process id is unique only together with its boot and pid namespace, because containers share a
boot and number their processes separately; with the user, whose processes are all visible; and
with the start of the process, because ids are reused. If one of them differs or is unknown, the
result is "unknown", and the lease decides. Linux only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optuna_deadline.allocation.records import Worker

#: In the environment of a worker's ranks and of their child processes: the worker's id.
WORKER = "OPTUNA_DEADLINE_WORKER"
#: In that of programs that a rank has started: the rank's process id.
RANK = "OPTUNA_DEADLINE_RANK"

_PROC = Path("/proc")
_STATE, _STARTED = 0, 19  # fields of /proc/PID/stat behind the name


def own_boot(proc: Path = _PROC) -> str | None:
    """The boot, pid namespace, user and start of this process; None if unknown.

    Hexadecimal without dashes, so that it fits the column.
    """
    place, started = _namespace(proc), _started(proc / "self")
    return None if place is None or started is None else f"{place}.{started:x}"


def is_gone(pid: int, boot: str | None, proc: Path = _PROC) -> bool:
    """Whether a process is certain to have ended; False if that is unknown.

    Args:
        pid: Its id.
        boot: Its own description, see :func:`own_boot`.
        proc: The file system of processes.
    """
    of, _, started = (boot or "").rpartition(".")
    return bool(of) and of == _namespace(proc) and _started(proc / str(pid)) != int(started, 16)


def ended_workers(workers: Iterable[Worker], proc: Path = _PROC) -> tuple[set[str], set[str]]:
    """Workers that are certain to have ended with all their ranks, and those that left ranks."""
    gone = {worker.id for worker in workers if is_gone(worker.pid, worker.boot, proc)}
    lingering = gone & _with_ranks(proc) if gone else gone
    return gone - lingering, lingering


def _namespace(proc: Path) -> str | None:
    with suppress(OSError):
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip().replace("-", "")
        space = (proc / "self/ns/pid").stat().st_ino
        return f"{boot}.{space:x}.{os.getuid():x}"
    return None


def _started(process: Path) -> int | None:
    """The start of a process in ticks since the boot; None if it is gone or a zombie."""
    try:
        fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[_STATE] in "ZX" else int(fields[_STARTED])


def _with_ranks(proc: Path) -> set[str]:
    """The workers whose id is in the environment of any process of this user."""
    prefix, found = f"{WORKER}=".encode(), set()
    for process in proc.glob("[0-9]*"):
        with suppress(OSError):  # gone in between, or another user's
            for entry in (process / "environ").read_bytes().split(b"\0"):
                if entry.startswith(prefix):
                    found.add(entry[len(prefix) :].decode(errors="replace"))
    return found
