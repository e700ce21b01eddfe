"""Network faults for tests: a TCP proxy that fails on request, and simulated hosts.

:class:`Proxy` stands between a worker and its database. A :class:`Host` is a network namespace on
a bridge, with its own address, host name, boot id and mounts. Its cable can be unplugged; packets
then vanish without an error. Hosts need Linux and root.
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
    """Forwards bytes between clients and a port of this machine until the ``with`` block ends.

    Args:
        upstream: The port to which connections are forwarded.
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
        """Forward everything again: end a stall, a delay and a refusal."""
        self._refusing, self._delay = False, 0.0
        self._do(self._flowing.set)

    def stall(self) -> None:
        """Keep all connections and move no bytes, as an unplugged cable does."""
        self._do(self._flowing.clear)

    def reset(self) -> None:
        """Reset every connection; forward new ones."""
        self._do(self._reset_all)

    def refuse(self) -> None:
        """Reset every connection, and each new one at once."""
        self._refusing = True
        self.reset()

    def delay(self, seconds: float) -> None:
        """Delay every block of bytes by a number of seconds."""
        self._delay = seconds

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(asyncio.sleep(0))

    def _do(self, what: Callable[[], None]) -> None:
        """Call a function in the proxy's thread and wait for it."""
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
            pass  # a side has closed, or the upstream refuses: reset the client
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
    """A network of hosts until the ``with`` block ends.

    Attributes:
        address: The address of this machine in the network, for servers that run here.
        subnet: The addresses of the network.
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
        """The reason for which this machine supports no networks; None if it does."""
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
        """Add a host.

        Args:
            name: The name of the host in this network.
            called: The host name that its processes see, ``name`` by default.
            mounts: Its own folders by their mount points.
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
        """Unplug the cable: packets vanish both ways, processes continue."""
        _run("ip", "link", "set", self._cable, "nomaster")

    def mend(self, network: Network) -> None:
        """Plug the cable in."""
        _run("ip", "link", "set", self._cable, "master", network._bridge)

    def avoid(self, other: Host) -> None:
        """Drop packets to another host; both hosts reach all others."""
        _run("ip", "netns", "exec", self._space, "ip", "route", "add", "blackhole", other.address)

    def start(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process on the host, without a shell around it."""
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
        """Kill every process on the host, as a power cut does."""
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
        """Remove the host."""
        self.die()
        for words in (("link", "del", self._cable), ("netns", "del", self._space)):
            subprocess.run(["ip", *words], capture_output=True, check=False)


def _run(*words: str) -> None:
    subprocess.run(words, capture_output=True, text=True, check=True)
