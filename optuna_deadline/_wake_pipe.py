"""A pipe that ends another thread's wait on file descriptors."""

from __future__ import annotations

import os
import threading
from contextlib import suppress


class WakePipe:
    """A pipe that is readable once :meth:`wake` was called.

    The number of a closed file descriptor is soon that of another file. So nothing is written
    after :meth:`close`, in whatever order threads call these methods.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        self._closed = False
        self._lock = threading.RLock()  # a signal handler may interrupt its own thread in wake()

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._reader

    def wake(self) -> None:
        """End the wait; callable from any thread or signal handler, also after :meth:`close`."""
        with self._lock, suppress(BlockingIOError):  # a full pipe is readable already
            if not self._closed:
                os.write(self._writer, b".")

    def drain(self) -> None:
        """Empty the pipe, so that the next wait blocks again."""
        with self._lock, suppress(BlockingIOError):
            if not self._closed:
                os.read(self._reader, 4096)

    def close(self) -> None:
        """Close both ends; a second call does nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._reader)
                os.close(self._writer)
