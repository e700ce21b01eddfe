"""One rank as its worker knows it: a pipe, a process on this host or another, its end message."""

from __future__ import annotations

import math
import select
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optuna_deadline.rank.messages import End, Message, Trusted

if TYPE_CHECKING:
    from optuna_deadline.rank.channel import Channel

#: Seconds in which a fork server that has loaded the objective confirms a fork.
FORK_SECONDS = 10.0


@dataclass
class Rank:
    """One rank as the worker knows it."""

    index: int
    link: Channel | None  #: None until a rank of another host has connected
    pid: int | None = None
    forked_fence: int = 0  #: fence of its first segment
    end_message: End | None = None  #: how its objective ended
    end_message_at: float = math.inf  #: when the end message arrived
    closed: bool = False
    closed_at: float = math.inf
    requested_at: float = math.inf  #: when the fork was requested
    exit_code: int | None = None
    orphaned: bool = (
        False  #: its exit code is unknown: the fork server died, or the host is remote
    )
    remote: bool = False  #: on another host, whose worker kills it

    @property
    def exited(self) -> bool:
        """Whether the process has exited."""
        return self.exit_code is not None or (self.orphaned and self.closed)

    @property
    def fork_overdue(self) -> bool:
        """Whether the fork server should have confirmed the fork by now."""
        waits = self.pid is None and not self.orphaned and not self.closed
        return waits and time.monotonic() - self.requested_at > FORK_SECONDS

    def disconnect(self) -> None:
        """Close the connection to another host, or stop waiting for it; its rank then ends."""
        if self.link is None:
            self.closed = True
        elif not self.closed:
            self.link.shut_down()

    def send(self, message: Message) -> None:
        """Send a message if the rank still reads."""
        if self.link is None or self.closed or self.exited:
            return
        with suppress(OSError):  # it has just ended; its end message is still to be read
            self.link.send(message)

    def extend_trust(self, until: float) -> None:
        """Send a new end of trust, unless the rank has stopped reading.

        The pipe of a frozen rank fills, and the worker must not wait for it, because it renews all
        leases. A rank that wakes after its trust ends itself.
        """
        if self.link is None or self.closed or self.exited:
            return
        room = select.poll()
        room.register(self.link, select.POLLOUT)
        with suppress(OSError):
            if room.poll(0):
                self.link.send(Trusted(until))
