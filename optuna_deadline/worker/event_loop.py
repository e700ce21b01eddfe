"""Waits on all pipes of a worker: of its ranks, of its fork server, and its wake-up pipe."""

from __future__ import annotations

import logging
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing import AuthenticationError, connection
from typing import Any

from optuna_deadline._wake_pipe import WakePipe
from optuna_deadline.errors import DeadlineError
from optuna_deadline.rank.fork_server import ForkServer
from optuna_deadline.rank.messages import Raised
from optuna_deadline.worker.rank_connection import Rank
from optuna_deadline.worker.segment import Gang
from optuna_deadline.worker.watchdog import Watchdog

#: The most fork servers in a row that may die while they load the objective.
_MAX_FAILED_STARTS = 3

_logger = logging.getLogger("optuna_deadline")


class EventLoop:
    """Waits on every pipe and passes each message to its gang.

    Whatever is done with a rank is done in the thread of this loop; others use :meth:`call_soon`.

    Args:
        fork_server: Forks the ranks; it is replaced if it dies.
        watchdog: Gets the process id of every rank.
    """

    def __init__(self, fork_server: ForkServer, watchdog: Watchdog) -> None:
        self._watchdog = watchdog
        self.worker_id = fork_server.worker
        self.fork_server = fork_server
        self._failed_starts = 0
        self._at_limit = False  # the system starts no more processes
        self._wake_pipe = WakePipe()
        self._woken = False
        self._soon: deque[Callable[[], object]] = deque()

    def wake(self) -> None:
        """End the wait; callable from any thread or signal handler."""
        self._woken = True
        self._wake_pipe.wake()

    def call_soon(self, work: Callable[[], object]) -> None:
        """Let the loop's thread call a function, after all earlier ones; from any thread."""
        self._soon.append(work)
        self._wake_pipe.wake()

    def run_soon(self) -> None:
        """Call the functions that other threads have asked for."""
        while self._soon:
            self._soon.popleft()()

    def poll(self, gangs: Callable[[], Sequence[Gang]], timeout: float) -> bool:
        """Dispatch messages; returns whether :meth:`wake` was called.

        The result of ``gangs`` may change in between: a warm rank sends in its new gang, the last
        one that has it.

        Raises:
            DeadlineError: The fork server could not load the objective.
        """
        self.run_soon()
        control = [self.fork_server.control] if self.fork_server.alive else []
        wakes = self._wake_pipe.fileno()
        for ready in connection.wait([*_links(gangs()), *control, wakes], timeout):
            if ready == wakes:
                self._wake_pipe.drain()
                self.run_soon()
            elif ready is self.fork_server.control:
                self._read_fork_server(gangs)
            elif (found := _links(gangs()).get(ready)) is not None:
                _read_rank(*found)
        woken, self._woken = self._woken, False
        return woken

    def replace_dead(self, gangs: Callable[[], Sequence[Gang]]) -> None:
        """Restart the watchdog and the fork server if they died or hang.

        Raises:
            DeadlineError: Fork servers die again and again before the objective is loaded.
        """
        self._watchdog.check()
        if self.fork_server.alive:
            overdue = any(rank.fork_overdue for gang in gangs() for rank in gang.ranks)
            if not overdue or self.fork_server.control.poll():
                return
            _logger.warning("The fork server does not respond; it is killed.")
        self.fork_server.poll_ready()  # its last message may give the reason
        failed_starts = 0 if self.fork_server.ready else self._failed_starts + 1
        if failed_starts >= _MAX_FAILED_STARTS:
            raise DeadlineError("The process that loads the objective dies while loading it.")
        try:
            new = self.fork_server.replacement()
        except OSError:
            return self._note_limit()  # the next round tries again
        self._failed_starts = failed_starts
        _logger.warning("The fork server died; a new one starts.")
        self.fork_server.close()
        for gang in gangs():
            for rank in gang.ranks:
                rank.orphaned = True
        self.fork_server = new

    def _note_limit(self) -> None:
        if not self._at_limit:
            self._at_limit = True
            _logger.warning(
                "The system starts no more processes for this user (ulimit -u, or memory): what "
                "has to start waits, and is tried again."
            )

    def close(self) -> None:
        """Close the fork server; its ranks end because their pipes close."""
        self.fork_server.close()
        self._wake_pipe.close()

    def _read_fork_server(self, gangs: Callable[[], Sequence[Gang]]) -> None:
        if not self.fork_server.poll_ready():
            return
        with suppress(EOFError, OSError):
            while self.fork_server.control.poll():
                kind, key, number = self.fork_server.control.recv()
                found = _find_forked(gangs(), *key)
                if found is None:
                    continue
                gang, rank = found
                if kind == "waits":
                    self._note_limit()
                    if not (gang.abandoned or gang.directive.leave):  # then it waits for none
                        rank.requested_at = time.monotonic()
                elif kind == "forked":
                    self._at_limit = False
                    rank.pid = number
                    self._watchdog.guard(number)
                    if gang.abandoned:
                        gang.kill()
                else:
                    if rank.pid is not None:
                        self._watchdog.forget(rank.pid)
                    rank.exit_code = number


def _links(gangs: Iterable[Gang]) -> dict[Any, tuple[Gang, Rank]]:
    return {
        rank.link: (gang, rank)
        for gang in gangs
        for rank in gang.ranks
        if not rank.closed and rank.link is not None
    }


def _find_forked(
    gangs: Iterable[Gang], number: int, fence: int, index: int
) -> tuple[Gang, Rank] | None:
    """Find the forked rank in its present gang."""
    found = None
    for gang in gangs:
        for rank in gang.ranks:
            if (gang.number, rank.forked_fence, rank.index) == (number, fence, index):
                found = gang, rank
    return found


def _read_rank(gang: Gang, rank: Rank) -> None:
    assert rank.link is not None
    try:
        while rank.link.poll():  # false within a message, whose rest may never come
            gang.receive(rank, rank.link.recv())
    except (EOFError, OSError, AuthenticationError):  # also a message that is too large
        rank.closed, rank.closed_at = True, time.monotonic()
        rank.link.close()
    except Exception as error:  # an unreadable message concerns its own trial only
        rank.end_message = Raised(f"{type(error).__name__}: {error}", traceback.format_exc())
        rank.end_message_at = time.monotonic()
        gang.kill()
