"""A TCP proxy that fails on request: what lies between a worker and its database."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

_BLOCK = 65536
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: no lingering, so close() sends RST


class Proxy:
    """Passes bytes between clients and one port of this machine, for the length of a ``with``.

    Args:
        upstream: The port that connections are passed on to.
    """

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._writers: set[asyncio.StreamWriter] = set()
        self._refusing = False
        self._delay = 0.0
        self.port = 0

    def __enter__(self) -> Proxy:
        self._flowing = asyncio.Event()
        self._flowing.set()
        start = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = self._loop.run_until_complete(start)
        self.port = int(self._server.sockets[0].getsockname()[1])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close)
        self._thread.join(10)
        self._loop.close()

    def flow(self) -> None:
        """Pass everything on again: ends a stall, a delay and a refusal."""
        self._refusing, self._delay = False, 0.0
        self._do(self._flowing.set)

    def stall(self) -> None:
        """Keep all connections and move no bytes, as a cut cable does."""
        self._do(self._flowing.clear)

    def reset(self) -> None:
        """Reset every connection; new ones are passed on."""
        self._do(self._reset_all)

    def refuse(self) -> None:
        """Reset every connection, and each new one as soon as it comes."""
        self._refusing = True
        self.reset()

    def delay(self, seconds: float) -> None:
        """Hold every block of bytes back for so long."""
        self._delay = seconds

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(asyncio.sleep(0))

    def _do(self, what: Callable[[], None]) -> None:
        """In the proxy's thread, and done when this returns."""
        done = threading.Event()

        def run() -> None:
            what()
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait(10)

    def _close(self) -> None:
        self._server.close()
        self._reset_all()
        self._loop.stop()

    def _reset_all(self) -> None:
        for writer in tuple(self._writers):
            _reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if self._refusing:
                return
            theirs, ours = await asyncio.open_connection("127.0.0.1", self._upstream)
            self._writers.add(ours)
            try:
                await asyncio.gather(self._pump(reader, ours), self._pump(theirs, writer))
            finally:
                self._writers.discard(ours)
                ours.close()
        except OSError:
            pass  # either side is gone, or the upstream refuses: the client is reset
        finally:
            self._writers.discard(writer)
            _reset(writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while block := await reader.read(_BLOCK):
            if self._delay:
                await asyncio.sleep(self._delay)
            await self._flowing.wait()
            writer.write(block)
            await writer.drain()
        writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None:
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
