"""The terminal picture of the README: ``python -m benchmarks.terminal_picture``.

Runs the example for Lightning on two CPU slots, and draws what it prints around the moment at
which a trial goes from one slot to two.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "lightning" / "elastic.py"
_GROWS = re.compile(r"goes from 1 to 2 slots")
_BEFORE, _AFTER, _FIRST = 5, 6, 4  # lines


def printed(deadline: str) -> list[str]:
    """What the example prints, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(
            [sys.executable, EXAMPLE, "--deadline", deadline],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True,
        )  # fmt: skip
    lines = [
        line for line in ran.stdout.splitlines() if re.match(r" +\d+\.\d s  |.*\d slots$", line)
    ]
    return [re.sub(r"^no-name-[\w-]+", "digits", line) for line in lines]


def around_growth(lines: list[str]) -> list[str]:
    """The first lines, those around the first growth of a trial, and the last.

    Raises:
        SystemExit: No trial has grown.
    """
    grown = next((place for place, line in enumerate(lines) if _GROWS.search(line)), None)
    if grown is None:
        raise SystemExit("No trial went from one slot to two: give a later --deadline.")
    begin, end = max(grown - _BEFORE, _FIRST), grown + _AFTER
    gaps = (["     ..."] if begin > _FIRST else []), (["     ..."] if end < len(lines) - 1 else [])
    return [*lines[:_FIRST], *gaps[0], *lines[begin:end], *gaps[1], lines[-1]]


def main(deadline: str, picture: Path) -> None:
    """Run the example, and write the picture."""
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(Text(f"$ python elastic.py --deadline {deadline}", style="bold"))
    for line in around_growth(printed(deadline)):
        console.print(
            Text(line, style="bold green" if _GROWS.search(line) else "", overflow="ellipsis"),
            no_wrap=True,
        )
    console.save_svg(str(picture), title="two CPU slots")
    print(f"The picture is in {picture}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deadline", default="30s")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "images" / "terminal.svg")
    main(**vars(parser.parse_args()))
