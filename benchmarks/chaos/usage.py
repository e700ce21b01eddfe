"""A rank's use of its slot, which the rank itself appends to one file per process."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Use:
    """One process on one slot, from its first record to its last."""

    study: str
    number: int
    fence: int
    rank: int
    device: str
    pid: int
    first: float  #: on the monotonic clock that all processes of the host share
    last: float
    resumed_at: int  #: the first step that it trained
    trained_to: int  #: the last step that it finished; resumed_at - 1 if there is none

    @property
    def segment(self) -> tuple[str, int, int]:
        """Study, trial and fence, which identify the holder of slots."""
        return (self.study, self.number, self.fence)


class UsageLog:
    """Writes the use of a slot by a rank.

    Args:
        folder: The folder of the files.
        study: The study's name.
        number: The trial's number.
        fence: The segment's fence.
        rank: The rank's number.
        resumed_at: The first step of the segment.
    """

    def __init__(
        self, folder: Path, study: str, number: int, fence: int, rank: int, resumed_at: int
    ) -> None:
        device = os.environ["OPTUNA_DEADLINE_DEVICES"].split(",")[int(os.environ["LOCAL_RANK"])]
        if host := os.environ.get("OPTUNA_DEADLINE_HOST"):
            device = f"{host}/{device}"
        self.device = device
        pid = os.getpid()
        facts = {
            "study": study, "number": number, "fence": fence, "rank": rank,
            "device": device, "pid": pid, "first": time.monotonic(), "resumed_at": resumed_at,
        }  # fmt: skip
        path = folder / f"{study}-{number}-{fence}-{rank}-{pid}.log"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(self._file, json.dumps(facts).encode() + b"\n")

    def using(self, trained_to: int) -> None:
        """Record that the slot is in use now."""
        os.write(self._file, f"{time.monotonic():.6f} {trained_to}\n".encode())


def read_uses(folder: Path) -> list[Use]:
    """The use of slots by all processes, without lines that a kill cut off."""
    uses = []
    for path in sorted(folder.glob("*.log")):
        head, _, rest = path.read_text().rpartition("\n")[0].partition("\n")
        if not head:
            continue
        facts = json.loads(head)
        last, trained_to = facts["first"], facts["resumed_at"] - 1
        if rest:
            when, step = rest.rpartition("\n")[2].split()
            last, trained_to = float(when), int(step)
        uses.append(Use(**facts, last=last, trained_to=trained_to))
    return uses


def in_use_after(folder: Path, instants: Mapping[str, float]) -> dict[str, float]:
    """For each device, the time at which a process first used it after a given time."""
    found: dict[str, float] = {}
    for path in folder.glob("*.log"):
        head, _, rest = path.read_text().rpartition("\n")[0].partition("\n")
        if not head:
            continue
        facts = json.loads(head)
        times = [facts["first"], *(float(line.split()[0]) for line in rest.splitlines())]
        device = facts["device"]
        later = [when for when in times if when >= instants.get(device, math.inf)]
        if later:
            found[device] = min(later[0], found.get(device, float("inf")))
    return found
