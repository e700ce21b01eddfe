"""One rank as its worker knows it: a pipe, a process on this host or another, its end message."""

from __future__ import annotations

import math
import select
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from optuna_deadline.rank.rendezvous import shut_down

if TYPE_CHECKING:
    from optuna_deadline.rank.link import RawLink


#: Seconds in which the fork server says that a rank is forked, once it has loaded the objective.
FORK_SECONDS = 10.0


@dataclass
class Rank:
    """One rank as the worker knows it."""

    index: int
    link: RawLink | None  #: None as long as it has not come from another host
    pid: int | None = None
    forked_fence: int = 0  #: fence of the segment that it was forked for
    end_message: tuple[str, Any] | None = None  #: its last words: (kind, payload)
    end_message_at: float = math.inf  #: when it said them
    closed: bool = False
    closed_at: float = math.inf
    requested_at: float = math.inf  #: when the fork server was asked for it
    exit_code: int | None = None
    orphaned: bool = (
        False  #: its exit code is unknown: the fork server died, or the host is remote
    )
    remote: bool = False  #: on another host, whose worker guards it
    lock: threading.Lock = field(default_factory=threading.Lock)  #: of what is sent to it

    @property
    def exited(self) -> bool:
        """Whether the process has exited."""
        return self.exit_code is not None or (self.orphaned and self.closed)

    @property
    def fork_overdue(self) -> bool:
        """Whether the fork server should have said long ago that it was forked."""
        waits = self.pid is None and not self.orphaned and not self.closed
        return waits and time.monotonic() - self.requested_at > FORK_SECONDS

    def disconnect(self) -> None:
        """End a connection to another host, or expect it no more: its rank ends by that."""
        with self.lock:
            if self.link is None:
                self.closed = True
            elif not self.closed:
                shut_down(self.link)

    def send(self, message: tuple[Any, ...]) -> None:
        """Tell it something, if it still listens."""
        with self.lock:
            if self.link is None or self.closed or self.exited:
                return
            with suppress(OSError):  # it has just ended; its last words are still to be read
                self.link.send(message)

    def extend_trust(self, until: float) -> None:
        """Let it believe in its slots until then, unless it has stopped reading.

        The pipe of a frozen rank fills; the worker, which renews all its leases, must not wait
        for that rank. A rank that wakes later than it is trusted ends itself.
        """
        with self.lock:
            if self.link is None or self.closed or self.exited:
                return
            room = select.poll()
            room.register(self.link, select.POLLOUT)
            with suppress(OSError):
                if room.poll(0):
                    self.link.send(("trust", until))
