"""Start the workers of the chaos run, replace dead or hung ones, and stop them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks.chaos.worker import GRACE, TTL, Place, work
from benchmarks.support.processes import alive, children
from optuna_deadline.rank.fork_server import ForkServer

_RESTART = 2.0  # seconds between two starts of one worker


@dataclass
class Member:
    """One member of the fleet, and its present process."""

    index: int
    place: Place
    process: BaseProcess
    frozen_at: float | None = None
    starts: int = 1
    started_at: float = field(default_factory=time.monotonic)

    @property
    def pid(self) -> int:
        """The worker's process number."""
        assert self.process.pid is not None
        return self.process.pid

    def family(self, kind: str) -> list[int]:
        """Its processes of one kind: agent, watchdog, fork server or rank."""
        if kind == "agent":
            return [self.pid] if self.process.is_alive() else []
        zygotes = [pid for pid in children(self.pid) if ForkServer.__module__ in _command(pid)]
        if kind == "fork server":
            return zygotes
        if kind == "rank":
            return [rank for pid in zygotes for rank in children(pid)]
        return [pid for pid in children(self.pid) if "watchdog" in _command(pid)]


@dataclass
class Fleet:
    """All workers; a frozen one is replaced after its lease, and may continue at any time."""

    places: Sequence[Place]
    folder: Path
    members: list[Member] = field(default_factory=list)
    ghosts: list[Member] = field(default_factory=list)
    _starts: int = 0

    def __post_init__(self) -> None:
        # Imported once in the fork server, so that a worker starts quickly.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["benchmarks.chaos.worker"])
        for index, place in enumerate(self.places):
            self.members.append(Member(index, place, self._start(index, place)))

    def keep(self, done: Collection[str] = ()) -> None:
        """Replace dead workers, and those frozen for so long that an operator would do so.

        Args:
            done: Studies that have ended, which need no worker.
        """
        self.ghosts = [ghost for ghost in self.ghosts if ghost.process.is_alive()]
        for member in self.members:
            frozen = member.frozen_at
            if member.place.study in done:
                continue
            if not member.process.is_alive():
                # A worker without a database exits at once; this limits the restarts.
                if time.monotonic() - member.started_at > _RESTART:
                    self._replace(member)
            elif frozen is not None and time.monotonic() - frozen > TTL + 0.5 * GRACE:
                self.ghosts.append(Member(member.index, member.place, member.process, frozen))
                self._replace(member)

    def move(self, member: Member, place: Place) -> None:
        """Start a worker of another study in the place of one that has ended."""
        member.place = place
        self._replace(member)

    def freeze(self, member: Member) -> None:
        """Send SIGSTOP to a worker."""
        member.frozen_at = time.monotonic()
        os.kill(member.pid, signal.SIGSTOP)

    def thaw(self, pid: int) -> None:
        """Send SIGCONT to a stopped process, if it still exists."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        for member in (*self.members, *self.ghosts):
            if member.pid == pid:
                member.frozen_at = None

    def dismiss_ghosts(self) -> None:
        """Stop replaced workers, and kill those that do not stop."""
        for ghost in self.ghosts:
            if ghost.process.is_alive():
                self.thaw(ghost.pid)
                ghost.process.terminate()

    def join(self, seconds: float) -> list[int | None]:
        """Wait for all workers to exit; return their exit codes, None for running ones."""
        end = time.monotonic() + seconds
        for member in self.members:
            member.process.join(max(0.0, end - time.monotonic()))
        return [member.process.exitcode for member in self.members]

    def close(self) -> None:
        """Kill all processes."""
        for member in (*self.members, *self.ghosts):
            pids = [
                pid for kind in ("rank", "fork server", "watchdog") for pid in member.family(kind)
            ]
            for pid in (member.pid, *pids):
                if alive(pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            member.process.join(5)

    def _replace(self, member: Member) -> None:
        member.process = self._start(member.index, member.place)
        member.starts += 1
        member.started_at = time.monotonic()
        member.frozen_at = None

    def _start(self, index: int, place: Place) -> BaseProcess:
        self._starts += 1  # a replaced worker may go on, and has a log of its own
        log = self.folder / f"worker-{index}-{self._starts}.log"
        process = self._context.Process(target=work, args=(place, log))
        process.start()
        return process


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""
