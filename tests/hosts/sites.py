"""A study on separate hosts: its workers, their logs, and the files of their ranks."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import optuna
from host_objective import EVERY

from benchmarks.support.network import Host, Network
from optuna_deadline.allocation.table import AllocationTable

TTL, GRACE = 6.0, 2.0
HERE = Path(__file__).parent


@dataclass
class Segment:
    """A stretch of training, as its rank wrote it down."""

    host: str
    number: int
    fence: int
    first: int  #: step
    begun: float  #: on the monotonic clock that the hosts here share
    last: float
    trained_to: int


@dataclass
class Site:
    """A study, its database, and its hosts."""

    network: Network
    url: str  #: as hosts reach it
    study: optuna.Study
    table: AllocationTable
    folder: Path
    _logs: dict[str, list[Path]] = field(default_factory=dict)

    @property
    def checkpoints(self) -> Path:
        """One folder for all hosts, but for those that mount their own there."""
        return self.folder / "checkpoints"

    def work(
        self,
        host: Host,
        *further: str,
        objective: str = "host_objective.py:train",
        cpus: int = 1,
        **environment: str,
    ) -> subprocess.Popen[bytes]:
        """Start the real command on a host."""
        (self.folder / "ranks").mkdir(exist_ok=True)
        logs = self._logs.setdefault(host.name, [])
        log = self.folder / f"{host.name}-{len(logs)}.log"
        logs.append(log)
        return host.start(
            self.command(
                "worker", str(HERE / objective), "--study", "study", "--cpus", str(cpus),
                "--oversubscribe", "--checkpoints", str(self.checkpoints), "--no-dashboard",
                *further,
            ),
            log,
            {"HOST_LOG": str(self.folder / "ranks"), "COLUMNS": "400", **environment},
        )  # fmt: skip

    def command(self, name: str, *words: str) -> list[str]:
        program = "from optuna_deadline.cli import app; app()"
        return [sys.executable, "-c", program, name, *words, "--storage", self.url]

    def log_of(self, host: str) -> str:
        """All that a host's workers wrote."""
        return " ".join(" ".join(log.read_text() for log in self._logs.get(host, ())).split())

    def segments(self) -> list[Segment]:
        """What was trained, in the order in which it began."""
        found = []
        for path in (self.folder / "ranks").glob("*"):
            *lines, _ = path.read_text().split("\n")  # the last line is still being written
            ticks = [line.split() for line in lines[1:]]
            if ticks:
                begun, last = float(ticks[0][0]), float(ticks[-1][0])
                facts = {**json.loads(lines[0]), "trained_to": int(ticks[-1][1])}
                found.append(Segment(**facts, begun=begun, last=last))
        return sorted(found, key=lambda segment: segment.begun)

    def training_on(self, host: str, number: int | None = None) -> Segment | None:
        """What a host trains just now."""
        now = time.monotonic()
        return next(
            (s for s in self.segments()
             if s.host == host and now - s.last < 0.5 and number in (None, s.number)),
            None,
        )  # fmt: skip

    def assert_nothing_twice(self, cut: Collection[str] = ()) -> None:
        """No trial trains in two places, and each goes on from its last checkpoint.

        That is at most ``EVERY`` steps back, but on hosts that were cut off from the table.
        """
        saved = [
            (event.number, event.fence, int(str(event.detail["step"])))
            for event in self.table.events(kinds=["checkpoint"])
        ]
        by_trial: dict[int, list[Segment]] = {}
        for segment in self.segments():
            by_trial.setdefault(segment.number, []).append(segment)
        for segments in by_trial.values():
            for one, other in pairwise(segments):
                assert one.last < other.begun and one.fence < other.fence, (one, other)
                steps = [s for n, fence, s in saved if n == one.number and fence < other.fence]
                assert other.first == max(steps, default=-1) + 1, (one, other)
                if one.host not in cut:
                    assert other.first > one.trained_to - EVERY, (one, other)


def until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait for what happens elsewhere; on a busy machine a worker takes long to begin."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)
