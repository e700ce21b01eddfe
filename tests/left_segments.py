"""A trial without a worker, which leaves when the test says so and goes on from its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from optuna_deadline.checkpoints.folders import FolderCheckpoints
from optuna_deadline.directives import KEEP, Directive, Kind
from optuna_deadline.rank.messages import Message
from optuna_deadline.segments import SegmentEnd


class Ear:
    """The worker's end: what a rank said."""

    def __init__(self) -> None:
        self.heard: list[Message] = []

    def send(self, message: Message) -> None:
        self.heard.append(message)


class FakeSegment(FolderCheckpoints):
    """A segment of one slot whose checkpoints are files in a folder."""

    elastic, rank, world_size, direction, checked = True, 0, 1, "minimize", False

    def __init__(self, folder: Path, fence: int, resume: Path | None, leave_at: int) -> None:
        self.folder, self.fence, self.resume = folder, fence, resume
        self.leave_at, self.looks = leave_at, 0
        self.saved: Path | None = None
        self.horizons: list[int] = []

    def newest(self) -> Directive:
        self.looks += 1
        return Directive(Kind.PAUSE, "as the test says") if self.looks >= self.leave_at else KEEP

    def directive(self) -> Directive:
        return self.newest()

    def save(self, write: Callable[[Path], Any], *, name: str | None = None, **_: Any) -> Path:
        self.saved = self.folder / (name or "saved")
        write(self.saved)
        return self.saved

    def horizon(self, last_step: int) -> None:
        self.horizons.append(last_step)

    def leave(self, directive: Directive) -> None:
        raise SegmentEnd(directive)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class FakeTrial:
    number = 0

    def __init__(
        self,
        segment: Any,
        reports: dict[int, float],
        attributes: dict[str, Any] | None = None,
    ) -> None:
        self.segment, self.reports = segment, reports
        self.user_attrs = {} if attributes is None else attributes

    def set_user_attr(self, key: str, value: Any) -> None:
        self.user_attrs[key] = value

    def report(self, value: float, step: int) -> None:
        self.reports.setdefault(step, value)


def train_in_segments(
    folder: Path, objective: Callable[[Any], Any], leave_at: int
) -> tuple[Any, dict[int, float], int]:
    """What an objective returns that leaves at each so many looks; its reports and segments."""
    reports, attributes = dict[int, float](), dict[str, Any]()
    resume: Path | None = None
    for fence in range(1, 100):
        (own := folder / str(fence)).mkdir(parents=True)
        segment = FakeSegment(own, fence, resume, leave_at if fence < 20 else 10**9)
        try:
            return objective(FakeTrial(segment, reports, attributes)), reports, fence
        except SegmentEnd:
            resume = segment.saved or resume
    raise AssertionError("the trial does not end")
