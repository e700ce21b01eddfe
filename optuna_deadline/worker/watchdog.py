"""Kills the ranks once the worker's leases can no longer be trusted.

It is a separate process, because a thread would stop with its process under the GIL, in a CUDA
call or after SIGSTOP. It knows one instant, ``trusted_until``, on the monotonic clock that all
processes of a host share. It kills the ranks at that instant, or when the worker's end of the pipe
closes.

A process that a rank has started in a session of its own is in no process group that is killed. It
is found by two variables of its environment, and ended after its rank, or with the worker.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import suppress

_logger = logging.getLogger("optuna_deadline")
_TICK = 0.05
_END_SECONDS = 1.0  # seconds for a program to end by itself after its rank
_KILL_SECONDS = 5.0  # the same after SIGTERM
_CLOSE_SECONDS = 2.0  # the same at the worker's end


class Watchdog:
    """The worker's end of the pipe.

    Args:
        worker_id: The worker.
    """

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._pids: set[int] = set()
        self._trusted_until: float | None = None
        self._process = self._start()

    def guard(self, pid: int) -> None:
        """Kill this rank at the end of trust."""
        self._pids.add(pid)
        self._send(f"guard {pid}")

    def forget(self, pid: int) -> None:
        """The rank has exited; its process id may soon be reused."""
        if pid in self._pids:
            self._pids.discard(pid)
            self._send(f"forget {pid}")

    def trust(self, until: float) -> None:
        """Move the instant, on :func:`time.monotonic`."""
        self._trusted_until = until
        self._send(f"trust {until!r}")

    def check(self) -> bool:
        """Restart it if it has died, and return False in that case; log what it has ended."""
        assert self._process.stdout is not None
        poll = select.poll()  # not select(), which rejects descriptors above 1,023
        poll.register(self._process.stdout, select.POLLIN)
        while poll.poll(0):
            if not (line := self._process.stdout.readline()):
                break
            _logger.warning("Processes that outlived their trial are ended: %s.", line.strip())
        if self._process.poll() is None:
            return True
        with suppress(OSError):  # no more processes for now: the next check tries again
            self._process = self._start()
        return False

    def close(self) -> None:
        """Close it; it kills ranks that still run."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)

    def _start(self) -> subprocess.Popen[str]:
        # Not above: the process runs this file without the package.
        from optuna_deadline.rank.processes import RANK, WORKER

        variables = f"{WORKER}={self._worker_id}", f"{RANK}="
        process = subprocess.Popen(
            [sys.executable, "-E", "-S", __file__, *variables],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        self._process = process
        if self._trusted_until is not None:
            self._send(f"trust {self._trusted_until!r}")
        for pid in self._pids:
            self._send(f"guard {pid}")
        return process

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the next check finds it dead and replaces it
            self._process.stdin.write(line + "\n")


def kill_rank(pid: int) -> None:
    """Kill a rank and all its child processes: each rank leads a process group."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def processes_with(variable: str, others: Collection[str] = ()) -> dict[int, str]:
    """The names of processes by process id; empty where there is no ``/proc``.

    Args:
        variable: What is in their environment, as "NAME=value".
        others: One of these is there as well; none is needed if this is empty.
    """
    mine, wanted = variable.encode(), {one.encode() for one in others}
    found = {}
    with suppress(FileNotFoundError):
        for process in filter(str.isdecimal, os.listdir("/proc")):
            with suppress(OSError):  # gone in between, or another user's
                with open(f"/proc/{process}/environ", "rb") as file:
                    there = set(file.read().split(b"\0"))
                if mine in there and (not wanted or wanted & there):
                    with open(f"/proc/{process}/comm") as file:
                        found[int(process)] = file.read().strip()
    return found


def _signal_all(pids: Collection[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


class _Outliving:
    """Ends programs that outlive their ranks.

    Args:
        worker: The variable of the worker's processes, as "NAME=id".
        rank: That of a rank's programs, as "NAME=", without the rank.
    """

    def __init__(self, worker: str, rank: str) -> None:
        self._worker, self._rank = worker, rank
        self._ranks: dict[int, float] = {}  # ranks that have exited, and when to look
        self._killed: dict[int, float] = {}  # the same once their programs were asked to end

    def exited(self, rank: int) -> None:
        """A rank has exited."""
        self._ranks[rank] = time.monotonic() + _END_SECONDS

    def look(self) -> None:
        """End what is due; costs nothing if nothing is."""
        now = time.monotonic()
        if due := [rank for rank, at in self._ranks.items() if at <= now]:
            if found := self._programs(due):
                _signal_all(found, signal.SIGTERM)
                self._killed |= dict.fromkeys(due, now + _KILL_SECONDS)
                print(", ".join(f"{name} ({pid})" for pid, name in found.items()), flush=True)
            for rank in due:
                del self._ranks[rank]
        if due := [rank for rank, at in self._killed.items() if at <= now]:
            _signal_all(self._programs(due), signal.SIGKILL)
            for rank in due:
                del self._killed[rank]

    def close(self) -> None:
        """End all processes of the worker, which has ended."""
        until = time.monotonic() + _CLOSE_SECONDS
        _signal_all(processes_with(self._worker), signal.SIGTERM)
        while (left := processes_with(self._worker)) and time.monotonic() < until:
            time.sleep(_TICK)
        _signal_all(left, signal.SIGKILL)

    def _programs(self, ranks: Collection[int]) -> dict[int, str]:
        return processes_with(self._worker, [f"{self._rank}{rank}" for rank in ranks])


def watch(stdin: int, worker: str, rank: str) -> None:
    """The watchdog's loop: read lines, kill at the instant or at the end of the pipe.

    Args:
        stdin: The pipe.
        worker: See :class:`_Outliving`.
        rank: Likewise.
    """
    pids: set[int] = set()
    outliving = _Outliving(worker, rank)
    trusted_until = float("inf")
    rest = b""
    while True:
        readable, _, _ = select.select([stdin], [], [], _TICK)
        if readable:
            block = os.read(stdin, 65536)
            if not block:
                break
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                word, _, argument = line.decode().partition(" ")
                if word == "guard":
                    pids.add(int(argument))
                elif word == "forget":
                    pids.discard(int(argument))
                    outliving.exited(int(argument))
                elif word == "trust":
                    trusted_until = float(argument)
        if time.monotonic() >= trusted_until:
            for pid in pids:
                kill_rank(pid)
            pids.clear()
        outliving.look()
    for pid in pids:
        kill_rank(pid)
    outliving.close()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watch(sys.stdin.fileno(), *sys.argv[1:])
