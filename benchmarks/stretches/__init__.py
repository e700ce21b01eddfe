"""The ranks' records of their training, on clusters whose nodes are all on this machine."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.stretches.objective import EVERY

OBJECTIVE = f"{Path(__file__).with_name('objective.py')}:train"


@dataclass(frozen=True)
class Stretch:
    """The training of one segment, from its rank's log."""

    host: str
    number: int
    fence: int
    slots: int
    first: int  #: the step at which it resumed
    begun: float  #: its start on the monotonic clock
    last: float
    trained_to: int


def read_stretches(logs: Path) -> list[Stretch]:
    """The records of the ranks, in the order of their starts."""
    found = []
    for path in logs.iterdir():
        head, *lines = path.read_text().splitlines()
        ticks = [line.split() for line in lines if len(line.split()) == 2]
        if ticks:
            begun, last, step = float(ticks[0][0]), float(ticks[-1][0]), int(ticks[-1][1])
            found.append(Stretch(**json.loads(head), begun=begun, last=last, trained_to=step))
    return sorted(found, key=lambda stretch: stretch.begun)


def wrong(stretches: list[Stretch]) -> list[str]:
    """Violations: a trial that trains twice at once, or one that lost too many steps."""
    found = []
    by_trial: dict[int, list[Stretch]] = {}
    for stretch in stretches:
        by_trial.setdefault(stretch.number, []).append(stretch)
    for number, mine in by_trial.items():
        for one, other in pairwise(mine):
            if one.last >= other.begun:
                found.append(f"trial {number} trained twice at once: {one} {other}")
            if other.first <= one.trained_to - EVERY:
                found.append(f"trial {number} lost too much: {one} {other}")
    return found


def conclude(figures: dict[str, Any], stretches: list[Stretch], file: Path | None) -> int:
    """Print a run's figures as a line of JSON, and its violations; return the exit status.

    Args:
        figures: The measured figures.
        stretches: The records of the ranks.
        file: A file for the line too.
    """
    line = json.dumps(figures)
    print(line)
    if file:
        file.write_text(line + "\n")
    found = wrong(stretches)
    for words in found:
        print(words, file=sys.stderr)
    return 1 if found else 0


def following(stretch: Stretch, stretches: list[Stretch]) -> Stretch | None:
    """The next segment of the same trial."""
    later = [s for s in stretches if s.number == stretch.number and s.fence > stretch.fence]
    return min(later, key=lambda s: s.fence, default=None)
