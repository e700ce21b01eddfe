"""Kills the ranks once the worker's leases can no longer be trusted.

It is a separate process, because a thread would stop with its process under the GIL, in a CUDA
call or after SIGSTOP. It knows one instant, ``trusted_until``, on the monotonic clock that all
processes of a host share. It kills the ranks at that instant, or when the worker's end of the pipe
closes.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

_TICK = 0.05


class Watchdog:
    """The worker's end of the pipe."""

    def __init__(self) -> None:
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
        """Restart it if it has died; returns False in that case."""
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
        process = subprocess.Popen(
            [sys.executable, "-E", "-S", __file__],
            stdin=subprocess.PIPE,
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


def watch(stdin: int) -> None:
    """The watchdog's loop: read lines, kill at the instant or at the end of the pipe."""
    pids: set[int] = set()
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
                elif word == "trust":
                    trusted_until = float(argument)
        if time.monotonic() >= trusted_until:
            for pid in pids:
                kill_rank(pid)
            pids.clear()
    for pid in pids:
        kill_rank(pid)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watch(sys.stdin.fileno())
