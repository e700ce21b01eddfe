"""What the ranks of gangs wrote down."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from gang_objective import BATCH


@dataclass
class Stretch:
    """What one rank did in one segment."""

    host: str
    number: int
    fence: int
    rank: int
    ranks: int
    node: int
    local: int
    pid: int
    first: int  #: step
    steps: dict[int, tuple[float, list[int], float]]  #: when, samples, loss

    @property
    def last(self) -> float:
        """When it made its last step."""
        return max((at for at, _, _ in self.steps.values()), default=0.0)


def stretches(folder: Path) -> list[Stretch]:
    """All there are, by trial, segment and rank."""
    found = []
    for path in folder.glob("*"):
        head, *lines = path.read_text().splitlines() or [""]
        steps = {}
        for line in lines:
            if line.endswith("]"):
                at, step, mine, loss = json.loads(line)
                steps[step] = (at, mine, loss)
        if head:
            found.append(Stretch(**json.loads(head), steps=steps))
    return sorted(found, key=lambda one: (one.number, one.fence, one.rank))


def training(folder: Path, number: int, ranks: int, steps: int = 1) -> list[Stretch]:
    """The ranks of a trial's newest segment, if it has so many and they train just now."""
    mine = [one for one in stretches(folder) if one.number == number]
    newest = [one for one in mine if one.fence == max(other.fence for other in mine)]
    now = time.monotonic()
    if len(newest) != ranks or any(one.ranks != ranks for one in newest):
        return []
    alive = all(len(one.steps) >= steps and now - one.last < 0.6 for one in newest)
    return newest if alive else []


def losses(found: list[Stretch], number: int) -> dict[int, float]:
    """A trial's loss at each step; the last segment that made it counts."""
    return {
        step: loss
        for one in found
        if one.number == number and one.rank == 0
        for step, (_, _, loss) in sorted(one.steps.items())
    }


def assert_each_sample_once(found: list[Stretch]) -> None:
    """Every batch that all ranks had was dealt whole, and to one rank each."""
    segments: dict[tuple[int, int], list[Stretch]] = {}
    for one in found:
        segments.setdefault((one.number, one.fence), []).append(one)
    for ranks in segments.values():
        if len(ranks) < ranks[0].ranks:
            continue
        for step in set.intersection(*[set(one.steps) for one in ranks]):
            samples = [sample for one in ranks for sample in one.steps[step][1]]
            assert len(samples) == len(set(samples)) == BATCH, (step, samples)
            assert len({one.steps[step][2] for one in ranks}) == 1, step
