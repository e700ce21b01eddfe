"""A stream of messages between a rank and a worker, over a socket pair or between hosts.

A worker never waits for the rest of a message, as it would with multiprocessing's connections: a
rank that is stopped in the middle of one must not stop its worker. Messages are JSON, so reading
one runs no code. Between hosts each message has a code (HMAC-SHA256) by the gang's key, a nonce of
each side and the message's number.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
import time
from contextlib import suppress
from itertools import count
from multiprocessing import AuthenticationError, connection
from typing import Any

from optuna_deadline.rank.encoding import MAX_MESSAGE, packed, unpacked
from optuna_deadline.rank.messages import Message

_LENGTH = struct.Struct("!I")
_TAG = hashlib.sha256().digest_size
_AT_ONCE = 1 << 18  # bytes of one read


class Channel:
    """One end of a stream; one thread reads, and callers make sure that one thread writes.

    Args:
        made: A connected socket in blocking mode, which the channel closes.
        limit: The largest message in bytes; a larger one is an error of the peer.
    """

    def __init__(self, made: socket.socket, limit: int = MAX_MESSAGE) -> None:
        self.limit = limit
        self._socket = made
        self._received = bytearray()
        self._at_end = False
        self._signs: _MessageCodes | None = None
        self._verifies: _MessageCodes | None = None

    def authenticate(self, sends: bytes, receives: bytes) -> None:
        """Sign all further messages with one key, and verify the peer's with the other."""
        self._signs, self._verifies = _MessageCodes(sends), _MessageCodes(receives)

    def send(self, message: Message) -> None:
        """Send a message; waits while the peer does not read."""
        self.send_bytes(packed(message))

    def send_bytes(self, content: bytes) -> None:
        """Send the bytes of a message."""
        code = b"" if self._signs is None else self._signs.next(content)
        self._socket.sendall(_LENGTH.pack(len(code) + len(content)) + code + content)

    def recv(self) -> Any:
        """Wait for the next message.

        Raises:
            EOFError: The peer has closed the stream.
            AuthenticationError: The message is not the peer's.
            OSError: The stream is broken, or the message is too large.
            ValueError: The message cannot be read.
        """
        return unpacked(self.recv_bytes())

    def recv_bytes(self) -> bytes:
        """Wait for the bytes of the next message."""
        while (content := self._next()) is None:
            if self._at_end:
                raise EOFError
            self._read(0)
        return content

    def poll(self, timeout: float = 0.0) -> bool:
        """Whether a whole message, or the end of the stream, arrives in time, in seconds."""
        until = time.monotonic() + timeout
        while not self._has_message() and not self._at_end:
            if not connection.wait([self._socket], max(0.0, until - time.monotonic())):
                return False
            self._read(socket.MSG_DONTWAIT)
        return True

    def fileno(self) -> int:
        """The descriptor, by which multiprocessing and select wait."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def shut_down(self) -> None:
        """Close the stream in both directions, also for a thread that waits for it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self, flags: int) -> None:
        # No more than the present message: what is left is seen by a wait for the socket.
        missing = self._end_of_message() - len(self._received)
        with suppress(BlockingIOError):
            part = self._socket.recv(min(missing, _AT_ONCE), flags)
            self._received += part
            self._at_end = not part

    def _end_of_message(self) -> int:
        """The bytes of the present message, or of its length while that is unknown."""
        if len(self._received) < _LENGTH.size:
            return _LENGTH.size
        length: int = _LENGTH.unpack_from(self._received)[0]
        if length > self.limit + (0 if self._verifies is None else _TAG):
            raise OSError(f"A message of {length:,} bytes is too large.")
        return _LENGTH.size + length

    def _has_message(self) -> bool:
        return len(self._received) >= self._end_of_message()

    def _next(self) -> bytes | None:
        if not self._has_message():
            return None
        content = bytes(self._received[_LENGTH.size :])
        self._received.clear()
        if self._verifies is None:
            return content
        code, content = content[:_TAG], content[_TAG:]
        if not hmac.compare_digest(code, self._verifies.next(content)):
            raise AuthenticationError("A message is not from the peer that has the gang's key.")
        return content


class _MessageCodes:
    """The codes of one direction; the number makes a repeated or dropped message visible."""

    def __init__(self, key: bytes) -> None:
        self._key, self._numbers = key, count()

    def next(self, content: bytes) -> bytes:
        numbered = next(self._numbers).to_bytes(8, "big") + content
        return hmac.digest(self._key, numbered, "sha256")


def channel_pair() -> tuple[Channel, Channel]:
    """Both ends of a stream within this host."""
    ours, theirs = socket.socketpair()
    return Channel(ours), Channel(theirs)


def channel_from(descriptor: int) -> Channel:
    """The channel of an inherited or received descriptor, which it closes."""
    return Channel(socket.socket(fileno=descriptor))
