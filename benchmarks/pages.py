"""``python -m benchmarks.pages [--seconds N] [--folder DIR]``: screenshots of the dashboard.

Two studies of the demo's network share four CPU slots of this machine, also if it has fewer cores.
At 0.6 of their time, a headless Chromium visits the live page and one study in optuna-dashboard.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Browser, FloatRect, Page, sync_playwright

from benchmarks.measuring import find_chromium
from optuna_deadline.dashboard.server import make_http_server, wsgi

OBJECTIVE = "optuna_deadline_demo.digits:objective"
STUDIES = ("resnet", "bert")
SLOTS = 4
LOOK = 0.6  #: the share of the time at which the pages are visited
FIGURES = ("allocation", "forecast", "budget", "utilization", "rungs")
_MARGIN = 8.0  # pixels around the figures


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the studies and take the screenshots."""
    parser = argparse.ArgumentParser(prog="benchmarks.pages", description=__doc__)
    parser.add_argument("--seconds", type=float, default=90.0, help="of the studies")
    parser.add_argument("--folder", type=Path, default=Path("docs/images"))
    given = parser.parse_args(arguments)
    if (chromium := find_chromium()) is None:
        parser.error("install Chromium, or name it with OPTUNA_DEADLINE_CHROMIUM.")
    given.folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/studies.db"
        workers = [_start(name, url, given.seconds, folder) for name in STUDIES]
        try:
            time.sleep(LOOK * given.seconds)
            with (
                make_http_server(wsgi(url), "127.0.0.1", 0) as server,
                sync_playwright() as playwright,
            ):
                threading.Thread(target=server.serve_forever, daemon=True).start()
                browser = playwright.chromium.launch(
                    executable_path=chromium, args=["--headless", "--no-sandbox"]
                )
                visit(browser, f"http://127.0.0.1:{server.server_port}", given.folder)
                browser.close()
                server.shutdown()
        finally:
            for worker in workers:
                worker.terminate()
                worker.wait()


def _start(name: str, url: str, seconds: float, folder: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from optuna_deadline.cli import app; app()"]
    terms = ["--storage", url, "--deadline", f"{seconds}s", "--direction", "maximize"]
    subprocess.run([*command, "create", name, *terms], check=True)
    options = [
        *("--study", name, "--storage", url, "--pool", "lab", "--checkpoints", folder),
        *("--cpus", str(SLOTS), "--oversubscribe"),
    ]
    return subprocess.Popen([*command, "worker", OBJECTIVE, *options])


def visit(browser: Browser, base: str, folder: Path) -> None:
    """Take all screenshots."""
    for name, width, height, scheme in (
        ("live-light", 1000, 820, "light"),
        ("live-dark", 800, 656, "dark"),
        ("live-phone", 390, 1100, "light"),
    ):
        page = browser.new_page(
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        page.goto(f"{base}/allocation")
        page.wait_for_selector(".slot .tile")
        page.screenshot(path=folder / f"{name}.png")
        page.close()
    page = browser.new_page(viewport={"width": 1100, "height": 1600})
    page.goto(f"{base}/dashboard/studies/1")
    for figure in FIGURES:
        page.wait_for_selector(f"{_plot(figure)} svg.main-svg")
    page.screenshot(path=folder / "study.png", full_page=True, clip=_around(page))
    page.close()
    page = browser.new_page(viewport={"width": 900, "height": 605})
    page.goto(f"{base}/dashboard/studies/1/note")
    page.wait_for_selector("text=Last decisions")
    page.screenshot(path=folder / "note.png")


def _plot(figure: str) -> str:
    return f"[id='user-defined-plot:deadline-{figure}']"


def _around(page: Page) -> FloatRect:
    """The rectangle around all figures."""
    boxes = [box for figure in FIGURES if (box := page.locator(_plot(figure)).bounding_box())]
    left, top = (min(box[side] for box in boxes) - _MARGIN for side in ("x", "y"))
    right = max(box["x"] + box["width"] for box in boxes) + _MARGIN
    bottom = max(box["y"] + box["height"] for box in boxes) + _MARGIN
    return {"x": left, "y": top, "width": right - left, "height": bottom - top}


if __name__ == "__main__":
    main()
