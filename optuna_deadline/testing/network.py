"""A TCP proxy that fails on request: what lies between a worker and its database.

Hosts of their own on one machine: each with an address, a name, a kernel's id and folders.

A host is a network namespace on a bridge; what is started in it also has a name and mounts of its
own. Its cable can be pulled: then packets vanish without an error. For Linux and root.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

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


_BOOT = "/proc/sys/kernel/random/boot_id"


class Network:
    """A network of hosts, for the length of a ``with``.

    Attributes:
        address: This machine's own in it: a server here listens there.
        subnet: All of its addresses.
    """

    def __init__(self) -> None:
        self._key = uuid.uuid4().hex[:6]
        first, second = int(self._key[:2], 16), int(self._key[2:4], 16)
        self._prefix = f"10.{first}.{second}"
        self.address = f"{self._prefix}.1"
        self.subnet = f"{self._prefix}.0/24"
        self._bridge = f"od{self._key}"
        self._hosts: list[Host] = []

    @staticmethod
    def missing() -> str | None:
        """Why there can be none here, or None where there can."""
        if os.name != "posix" or os.geteuid() != 0:
            return "hosts of their own need root"
        if any(shutil.which(name) is None for name in ("ip", "unshare")):
            return "hosts of their own need iproute2 and util-linux"
        name = f"odtry{uuid.uuid4().hex[:6]}"
        try:
            _run("ip", "netns", "add", name)
            _run("ip", "netns", "exec", name, "unshare", "--uts", "--mount", "true")
            _run("ip", "netns", "del", name)
        except subprocess.CalledProcessError as error:
            return f"this machine allows no network namespaces: {error.stderr.strip()}"
        return None

    def __enter__(self) -> Network:
        _run("ip", "link", "add", self._bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{self.address}/24", "dev", self._bridge)
        _run("ip", "link", "set", self._bridge, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts:
            host.close()
        _run("ip", "link", "del", self._bridge)

    def host(
        self,
        name: str,
        *,
        called: str | None = None,
        mounts: Mapping[Path, Path] | None = None,
    ) -> Host:
        """A host.

        Args:
            name: By which it is known here.
            called: What it calls itself, ``name`` if not given.
            mounts: Folders of its own, by the places where it finds them.
        """
        number = len(self._hosts) + 2
        host = Host(
            f"{self._bridge}{number}",
            self._bridge,
            f"{self._prefix}.{number}",
            called or name,
            mounts or {},
        )
        self._hosts.append(host)
        return host


class Host:
    """One host; see :meth:`Network.host`."""

    def __init__(
        self, space: str, bridge: str, address: str, name: str, mounts: Mapping[Path, Path]
    ) -> None:
        self.name = name
        self.address = address
        self._space = space
        self._mounts = mounts
        self._boot = str(uuid.uuid4())
        self._started: list[subprocess.Popen[Any]] = []
        inside = ("ip", "netns", "exec", space)
        self._cable = f"{space}c"
        _run("ip", "netns", "add", space)
        _run("ip", "link", "add", self._cable, "type", "veth", "peer", "eth0", "netns", space)
        _run("ip", "link", "set", self._cable, "master", bridge, "up")
        _run(*inside, "ip", "addr", "add", f"{address}/24", "dev", "eth0")
        _run(*inside, "ip", "link", "set", "eth0", "up")
        _run(*inside, "ip", "link", "set", "lo", "up")

    def cut(self) -> None:
        """Pull its cable: packets vanish both ways, its processes live on."""
        _run("ip", "link", "set", self._cable, "nomaster")

    def mend(self, network: Network) -> None:
        """Plug the cable in again."""
        _run("ip", "link", "set", self._cable, "master", network._bridge)

    def avoid(self, other: Host) -> None:
        """Drop what goes to another host; both reach all others."""
        _run("ip", "netns", "exec", self._space, "ip", "route", "add", "blackhole", other.address)

    def start(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process on it, which is the process itself and no shell around it."""
        steps = [f"hostname {shlex.quote(self.name)}"]
        boot = log.with_suffix(".boot")
        boot.write_text(self._boot + "\n")
        steps.append(f"mount --bind {shlex.quote(str(boot))} {_BOOT}")
        for place, own in self._mounts.items():
            place.mkdir(parents=True, exist_ok=True)
            own.mkdir(parents=True, exist_ok=True)
            steps.append(f"mount --bind {shlex.quote(str(own))} {shlex.quote(str(place))}")
        steps.append(f"exec {shlex.join(command)}")
        prefix = ("ip", "netns", "exec", self._space, "unshare", "--uts", "--mount", "sh", "-ec")
        with log.open("ab") as written:
            process = subprocess.Popen(
                [*prefix, "\n".join(steps)],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def die(self) -> None:
        """Every process on it ends at once, as by a power cut."""
        answer = subprocess.run(
            ["ip", "netns", "pids", self._space], capture_output=True, text=True, check=False
        )
        for pid in answer.stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        for process in self._started:
            process.wait(10)
        self._started.clear()

    def close(self) -> None:
        """End it."""
        self.die()
        for words in (("link", "del", self._cable), ("netns", "del", self._space)):
            subprocess.run(["ip", *words], capture_output=True, check=False)


def _run(*words: str) -> None:
    subprocess.run(words, capture_output=True, text=True, check=True)
