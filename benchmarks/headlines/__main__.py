"""The papers' main results beside ours: paper, ours, ratio, and pictures."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from importlib import import_module
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import cast

from benchmarks.headlines.rows import Options, Row, System
from benchmarks.measuring import Progress, output_file, write_json

#: Each is a module of this package.
SYSTEMS: tuple[str, ...] = ("hypersched", "seer", "rubberband", "hermes", "shockwave")

_INDENT = " " * 5


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
                write_json(given.json, [asdict(row) for row in rows])  # also if interrupted later
    finally:
        progress.end()
    print(as_text(rows))


def as_text(rows: list[Row], width: int = 79) -> str:
    """All rows as lines for a narrow terminal, and the missed targets at the end."""
    lines: list[str] = []
    for system, group in groupby(rows, key=lambda row: row.system):
        lines += ["", system, "-" * len(system)]
        for row in group:
            figures = [f"paper {_say(row.paper)}", f"ours {_say(row.ours)}"]
            if row.ratio is not None:
                figures.append(f"ratio {_say(row.ratio)}")
            if row.target:
                figures[-1] += f"; target {row.target}"
            lines += wrap(f"{_word(row)} {row.name}", width, subsequent_indent=_INDENT)
            for words in (", ".join(figures), row.note):
                lines += wrap(words, width, initial_indent=_INDENT, subsequent_indent=_INDENT)
    lines += ["", tally(rows)]
    for name in [row.name for row in rows if row.met is False]:
        lines += wrap(f"missed: {name}", width, subsequent_indent=_INDENT)
    return "\n".join(lines)


def tally(rows: list[Row]) -> str:
    """How many targets were met; ties, and rows without a target, are counted apart."""
    words = [_word(row).strip() for row in rows]
    met, missed, ties, bare = (words.count(word) for word in ("met", "MISS", "tie", "-"))
    return f"{met} of {met + missed + ties} met, {ties} ties; {bare} rows have no target."


def _word(row: Row) -> str:
    if row.met is None:
        return "tie " if row.target else "-   "
    return "met " if row.met else "MISS"


def _say(figure: float | str | None) -> str:
    if figure is None:
        return "-"
    return figure if isinstance(figure, str) else f"{figure:,.4g}"


if __name__ == "__main__":
    main()
