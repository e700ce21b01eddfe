"""Helpers of the benchmarks: count statements, summarise times, show progress, write results."""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import shutil
import statistics
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy as sa
from rich.console import Console

from optuna_deadline.allocation.database.access import listening

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


class StatementCounter:
    """Counts the SQL statements of every engine in the process, Optuna's and ours.

    Cursor executions count; BEGIN, COMMIT and the pool's pings do not.
    """

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def listening(self) -> Iterator[StatementCounter]:
        """Count until the ``with`` block ends."""
        sa.event.listen(sa.Engine, "before_cursor_execute", self._executed)
        try:
            with listening(self._executed):
                yield self
        finally:
            sa.event.remove(sa.Engine, "before_cursor_execute", self._executed)

    def _executed(self, *_: object) -> None:
        self.count += 1


@dataclass(frozen=True)
class Spread:
    """The median of some times, and their first and last deciles."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, times: Sequence[float]) -> Spread:
        """The median and the first and last deciles, by linear interpolation."""
        if len(times) < 2:
            return cls(times[0], times[0], times[0])
        deciles = statistics.quantiles(times, n=10, method="inclusive")
        return cls(statistics.median(times), deciles[0], deciles[-1])


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    """The median and the 99th percentile in milliseconds; empty for fewer than two times."""
    if len(seconds) < 2:
        return {}
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {"p50": round(1000 * cuts[49], 2), "p99": round(1000 * cuts[98], 2)}


def with_error(value: float, error: float | None, form: str) -> str:
    """A value and its standard error, if it has one, with the same number of digits.

    Args:
        value: The value.
        error: Its standard error.
        form: The format of the value, such as "+.3f".
    """
    return format(value, form) + ("" if error is None else f" ±{error:{form.lstrip('+')}}")


def screen(piped: int) -> Console:
    """The terminal; where the output is none, a console of this many columns."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=piped)


class Progress:
    """One line on stderr that is overwritten; nothing if stderr is not a terminal."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._shown = sys.stderr.isatty()

    def write_progress(self, text: str) -> None:
        """Replace the line."""
        if self._shown:
            seconds = time.monotonic() - self._began
            print(f"\r\x1b[K{seconds:5.0f} s  {text}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Erase the line."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def machine(*libraries: str) -> dict[str, Any]:
    """The machine and the versions on which the figures depend, with further ``libraries``."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load_at_end": load,
        **{name: version(name) for name in ("optuna", "sqlalchemy", *libraries)},
    }


def quiet() -> None:
    """Silence the logs of studies and Optuna's experimental warnings."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)


def output_file(text: str) -> Path:
    """The argparse type of an output file, which is checked before anything is measured."""
    path = Path(text)
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}; create it first")
    return path


def write_json(path: Path | None, result: dict[str, Any] | list[dict[str, Any]]) -> None:
    """Write a result as JSON, if a file is given."""
    if path is not None:
        path.write_text(json.dumps(result, indent=2) + "\n")


def find_chromium() -> str | None:
    """The path of a Chromium: OPTUNA_DEADLINE_CHROMIUM, or the system's; None if there is none."""
    given = os.environ.get("OPTUNA_DEADLINE_CHROMIUM")
    return given or next(filter(None, map(shutil.which, _BROWSERS)), None)
