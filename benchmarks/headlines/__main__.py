"""The papers' headlines side by side with ours: paper, ours, ratio, and pictures."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.table import Table

from benchmarks.headlines.rows import Options, Row, System
from benchmarks.measuring import Progress, output_file, write_json

#: Each is a module of this package.
SYSTEMS: tuple[str, ...] = ("hypersched", "seer", "rubberband", "hermes", "shockwave")


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.headlines", description=__doc__)
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of recorded data")
    parser.add_argument("--quick", action="store_true", help="fewer seeds, every row")
    parser.add_argument("--only", choices=SYSTEMS, action="append", help="one system's rows")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="where the rows go")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="where pictures go")
    given = parser.parse_args(arguments)
    if given.data is not None and not given.data.is_dir():
        parser.error(f"there is no folder {given.data}")
    if given.pictures is not None:
        given.pictures.mkdir(parents=True, exist_ok=True)
    progress = Progress()
    options = Options(given.data, given.quick, given.jobs, given.pictures, progress)
    rows: list[Row] = []
    try:
        for name in given.only or SYSTEMS:
            system = cast("System", import_module(f"benchmarks.headlines.{name}"))
            for row in system.rows(options):
                rows.append(row)
                write_json(given.json, [asdict(row) for row in rows])  # a cut run keeps its rows
    finally:
        progress.end()
    Console().print(_table(rows))


def _table(rows: list[Row]) -> Table:
    table = Table("system", "what", "paper", "ours", "ratio", "target", "met", "note")
    for row in rows:
        table.add_row(
            row.system,
            row.name,
            _say(row.paper),
            _say(row.ours),
            _say(row.ratio),
            row.target,
            "yes" if row.met else "NO",
            row.note,
        )
    return table


def _say(figure: float | str | None) -> str:
    if figure is None:
        return "-"
    return figure if isinstance(figure, str) else f"{figure:,.4g}"


if __name__ == "__main__":
    main()
