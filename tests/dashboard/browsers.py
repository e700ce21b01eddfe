"""A headless Chromium, if the machine has one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks.measuring import find_chromium
from optuna_deadline.dashboard.server import make_http_server, wsgi

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@contextmanager
def launched() -> Iterator[Any]:
    """A browser of playwright's."""
    api = pytest.importorskip("playwright.sync_api", reason="there is no playwright here")
    if (path := find_chromium()) is None:
        pytest.skip(
            "there is no Chromium here: apt-get install chromium, or name one with "
            "OPTUNA_DEADLINE_CHROMIUM"
        )
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        yield browser
        browser.close()


@contextmanager
def served(url: str) -> Iterator[str]:
    """optuna-dashboard with our page on a port of its own; yields its address."""
    with make_http_server(wsgi(url), "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Visit:
    """A page, and what its console complained of."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.complaints: list[str] = []
        self.page = browser.new_page(**options)
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(address)

    def _note(self, message: Any) -> None:
        if message.type == "error":
            self.complaints.append(f"{message.text} {message.location}")
