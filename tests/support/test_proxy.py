"""The proxy passes, stalls, resets, refuses and delays."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from benchmarks.support.network import Proxy


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while block := self.request.recv(4096):
            self.request.sendall(block)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A proxy before a server that sends everything back."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        with Proxy(server.server_address[1]) as proxy:
            yield proxy
        server.shutdown()


def call(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=5)


def says(client: socket.socket, words: bytes) -> bytes:
    client.sendall(words)
    return client.recv(4096)


def test_it_passes_what_both_sides_say(proxy: Proxy) -> None:
    with call(proxy) as one, call(proxy) as other:
        assert (says(one, b"a"), says(other, b"b"), says(one, b"c")) == (b"a", b"b", b"c")


def test_a_stall_keeps_the_connection_and_moves_nothing(proxy: Proxy) -> None:
    with call(proxy) as client:
        assert says(client, b"a") == b"a"
        proxy.stall()
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            says(client, b"b")
        proxy.flow()
        client.settimeout(5)
        assert client.recv(4096) == b"b"


def test_a_reset_ends_what_is_open_and_lets_new_ones_in(proxy: Proxy) -> None:
    with call(proxy) as client:
        assert says(client, b"a") == b"a"
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            says(client, b"b")
    with call(proxy) as client:
        assert says(client, b"c") == b"c"


def test_a_refusal_ends_new_ones_too_until_it_flows(proxy: Proxy) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionResetError), call(proxy) as client:  # or on connecting
        says(client, b"a")
        client.recv(1)
    proxy.flow()
    with call(proxy) as client:
        assert says(client, b"b") == b"b"


def test_a_delay_holds_back(proxy: Proxy) -> None:
    proxy.delay(0.1)
    with call(proxy) as client:
        began = time.monotonic()
        assert says(client, b"a") == b"a"
        assert time.monotonic() - began >= 0.2  # there and back


def test_nobody_behind_it_resets_the_client() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Proxy(port) as proxy, pytest.raises(ConnectionResetError), call(proxy) as client:
        says(client, b"a")
        client.recv(1)
