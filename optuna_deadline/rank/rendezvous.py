"""Connections between hosts: ranks of a gang connect to their leader.

They carry the same messages as a rank's pipe, each with a code by the gang's key and by a nonce of
both sides. Keep-alives detect a peer that is cut off. A host's address for others, and the
interface that has it, are found here.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError

from optuna_deadline.errors import DeadlineError
from optuna_deadline.rank.channel import Channel
from optuna_deadline.rank.encoding import MAX_MESSAGE
from optuna_deadline.rank.messages import Introduction, Welcome

#: Overrides the address, if it is not the one towards the database.
ADDRESS_VARIABLE = "OPTUNA_DEADLINE_ADDRESS"

_SIOCGIFADDR = 0x8915  # Linux's question for an interface's address


def own_address(towards: str | None) -> str | None:
    """This host's address for others; None if only the loopback is known.

    Args:
        towards: The database's host: a process that reaches the same database should reach this
            address too.
    """
    if given := os.environ.get(ADDRESS_VARIABLE):
        return given
    for host in (towards, socket.gethostname()):
        with suppress(OSError):
            found = _source_address(host) if host is towards else socket.gethostbyname(str(host))
            if found is not None and not found.startswith("127."):
                return found
    return None


def _source_address(host: str | None) -> str | None:
    """The source address of packets to a host; none is sent."""
    if not host or host.startswith("/"):  # a socket in the file system
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The interface of an address, if the system reports it."""
    if sys.platform != "linux":
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


_logger = logging.getLogger("optuna_deadline")

_HANDSHAKE_SECONDS = 5  # seconds, for all of it
_MAX_HANDSHAKES = 64  # at the same time; further connections are closed and try again
_MAX_HANDSHAKE_MESSAGE, _NONCE = 256, 32  # bytes
_RETRY_SECONDS = 0.2  # seconds between two tries
#: Keep-alive of TCP: seconds of silence, seconds between probes, probes; together 9 s.
_KEEPALIVE = {"TCP_KEEPIDLE": 3, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 9000}

#: Gets a rank's connection: number, fence, rank; returns whether that rank is expected.
AdmitRank = Callable[[int, int, int, Channel], bool]


@dataclass(frozen=True)
class LeaderEndpoint:
    """Where a rank finds its leader."""

    address: str
    port: int
    key: str = field(repr=False)


class RankServer:
    """Accepts ranks of other hosts.

    Args:
        address: Of this host, for the others.
        admit: Called with each rank that connects, in a separate thread.

    Raises:
        DeadlineError: The address is not this host's.
    """

    def __init__(self, address: str, admit: AdmitRank) -> None:
        self._admit = admit
        self._closed = False
        self._handshakes = threading.BoundedSemaphore(_MAX_HANDSHAKES)
        try:
            self._socket = socket.create_server((address, 0), backlog=64)
        except OSError as error:
            raise DeadlineError(
                f"{address} is not an address of this host ({error.strerror}): name one at which "
                f"the other hosts reach it with {ADDRESS_VARIABLE}."
            ) from None
        self.endpoint = LeaderEndpoint(
            address, int(self._socket.getsockname()[1]), secrets.token_hex(32)
        )
        threading.Thread(target=self._serve, name="rank-server", daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                guest, _ = self._socket.accept()
            except OSError as error:
                if self._closed:
                    return
                _logger.debug("No connection can be accepted: %s", error)  # too many open files
                time.sleep(_RETRY_SECONDS)
                continue
            if not self._handshakes.acquire(blocking=False):
                guest.close()
                continue
            try:
                threading.Thread(target=self._handshake, args=(guest,), daemon=True).start()
            except RuntimeError as error:  # no more threads; the rank tries again
                _logger.debug("A connection cannot be served: %s", error)
                self._handshakes.release()
                guest.close()

    def _handshake(self, guest: socket.socket) -> None:
        link = _channel(guest)
        end = threading.Timer(_HANDSHAKE_SECONDS, link.shut_down)  # also for slow senders
        end.daemon = True
        admitted = False
        try:
            end.start()
            _authenticate(link, self.endpoint.key, leads=True)
            link.send(Welcome())
            rank = link.recv()
            if not isinstance(rank, Introduction):
                raise ValueError(f"It introduces itself by {rank!r:.100}.")
            end.cancel()
            _open(link, guest)
            admitted = self._admit(rank.trial, rank.fence, rank.index, link)
        except (
            OSError, EOFError, AuthenticationError, TypeError, ValueError, RuntimeError
        ) as error:  # fmt: skip
            _logger.debug("A connection was refused: %s", error)
        finally:
            end.cancel()
            self._handshakes.release()
        if not admitted:
            link.close()


def connect_to_leader(
    endpoint: LeaderEndpoint, number: int, fence: int, index: int, seconds: float
) -> Channel:
    """Connect a rank to its leader, with retries for some time.

    Raises:
        OSError: It cannot be reached.
        AuthenticationError: It does not know the key.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            made = socket.create_connection(
                (endpoint.address, endpoint.port), timeout=_HANDSHAKE_SECONDS
            )
            link = _channel(made)
            _authenticate(link, endpoint.key, leads=False)
            link.recv()  # the welcome
            link.send(Introduction(number, fence, index))
            _open(link, made)
            return link
        except (OSError, EOFError, ValueError) as error:
            if time.monotonic() > end:
                raise OSError(
                    f"{endpoint.address}:{endpoint.port} cannot be reached: {error}"
                ) from error
            time.sleep(_RETRY_SECONDS)


def _authenticate(link: Channel, key: str, *, leads: bool) -> None:
    """Exchange nonces; all further messages are signed with keys that are used once.

    Raises:
        OSError: The peer's nonce has another size.
    """
    own = secrets.token_bytes(_NONCE)
    link.send_bytes(own)
    other = link.recv_bytes()
    if len(other) != _NONCE:
        raise OSError("The peer speaks another protocol.")
    nonces = own + other if leads else other + own
    leader, rank = (
        hmac.digest(key.encode(), side + nonces, "sha256") for side in (b"leader", b"rank")
    )
    link.authenticate(*((leader, rank) if leads else (rank, leader)))


def _channel(made: socket.socket) -> Channel:
    """A channel for the handshake."""
    made.settimeout(_HANDSHAKE_SECONDS)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return Channel(made, _MAX_HANDSHAKE_MESSAGE)


def _open(link: Channel, made: socket.socket) -> None:
    """The handshake is over: a rank may be silent for any time."""
    made.settimeout(None)
    link.limit = MAX_MESSAGE
