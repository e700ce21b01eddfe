"""The trial and the segment in a rank; only the worker uses Optuna."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from optuna.distributions import BaseDistribution, CategoricalChoiceType
from optuna.trial import Trial

from optuna_deadline._crashpoints import crashpoint
from optuna_deadline._numbers import plain_number
from optuna_deadline.checkpoints.files import checksum, write_checked
from optuna_deadline.checkpoints.folders import FolderCheckpoints
from optuna_deadline.checkpoints.private import make_private
from optuna_deadline.checkpoints.storage import Location, join_location, upload
from optuna_deadline.directives import Directive, Kind
from optuna_deadline.errors import at_most
from optuna_deadline.rank.encoding import restored_choice
from optuna_deadline.rank.late_imports import ImportLog
from optuna_deadline.rank.link import Link
from optuna_deadline.rank.messages import (
    Advanced,
    BatchSize,
    LastStep,
    Limited,
    NotSaved,
    Obeys,
    Pausable,
    RegimeNamed,
    Reported,
    Saved,
    StaysWarm,
    checked_step,
)
from optuna_deadline.rank.storage import RankStorage
from optuna_deadline.rank.study import RankStudy
from optuna_deadline.segments import SegmentEnd

#: The environment variable that names a rank's devices.
DEVICES = "OPTUNA_DEADLINE_DEVICES"

_PROGRESS_SECONDS = 0.25
#: How long a trial waits for the plan after a report: a share of the time since the report before,
#: and seconds.
_WAIT_SHARE, _MAX_WAIT = 0.05, 0.5


class RankSegment(FolderCheckpoints):
    """Implements :class:`optuna_deadline.segments.Segment` over the pipe."""

    elastic = True

    def __init__(
        self,
        link: Link,
        *,
        rank: int,
        world_size: int,
        fence: int,
        folder: Path,
        resume: Path | None,
        direction: str,
        store: str | None = None,
        imports: ImportLog | None = None,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.fence = fence
        self.resume = resume
        self.direction = direction
        self._folder = folder
        self._store = store  # the URL of its checkpoints, if they are kept elsewhere
        self._link = link
        self._imports = imports
        self._regime: str | None = None
        self._directive_calls = 0
        self._unanswered: tuple[int, float] | None = None  # a report's step, the end of the wait
        self.reports_position = False  # whether the objective reports its position itself
        self._begin()

    def _begin(self) -> None:
        """Forget the progress of the segment before."""
        self._began_at = self._reported_at = time.monotonic()
        self._first_position: tuple[float, float] | None = None  # (position, when)
        self._position: tuple[float, float] | None = None  # the newest
        self._unsent = False  # whether the worker does not know the newest progress
        self._validated = self._waited = 0.0  # seconds since the first position
        self._last_progress_at = 0.0
        self._acknowledged = False

    @property
    def folder(self) -> Path:
        """The trial's checkpoint folder."""
        make_private(self._folder.parent)  # of the study, which may have been deleted
        make_private(self._folder)
        return self._folder

    @property
    def trained(self) -> float:
        """Seconds since the first sign of training in this segment."""
        return time.monotonic() - (
            self._first_position[1] if self._first_position else self._began_at
        )

    def newest(self) -> Directive:
        """The newest directive; after a report, that of a plan which has seen it, if one comes.

        A trial that trains on until the plan is there would train another epoch in vain.
        """
        if self._unanswered is not None:
            began = time.monotonic()
            self._link.wait_for_plan(*self._unanswered)
            self._unanswered = None
            self._count(waited=time.monotonic() - began)
        return self.acknowledge(self._link.newest)

    def await_plan(self, step: int) -> None:
        """Let the next directive be that of a plan which has seen the report of a step."""
        now = time.monotonic()
        if step >= self._link.next_look:
            wait = min(_MAX_WAIT, _WAIT_SHARE * (now - self._reported_at))
            self._unanswered = step, now + wait
        self._reported_at = now

    def directive(self) -> Directive:
        """The directive in force; the n-th call answers the same on every rank."""
        if self.world_size == 1:
            return self.newest()
        self._directive_calls += 1
        return self.acknowledge(self._link.agreed_directive(self._directive_calls))

    def acknowledge(self, directive: Directive) -> Directive:
        """Report that the objective knows of its end: it saves from now on."""
        if directive.leave and not self._acknowledged:
            self._acknowledged = True
            self.send_progress()
            self._link.send(Obeys())
        return directive

    def progress(self, position: float) -> None:
        """Report the progress; the pipe is used a few times a second at most."""
        self.reports_position = True
        self.advance(float(position))

    def advance(self, position: float) -> None:
        """Record a position; the reports of a loop without one give it."""
        if self.rank != 0:
            return
        now = time.monotonic()
        if self._first_position is None:
            self._first_position = (position, now)
            if self._imports is not None:
                self._imports.write()  # by now it has used most of what it will use
        self._position, self._unsent = (position, now), True
        if now - self._last_progress_at >= _PROGRESS_SECONDS:
            self._last_progress_at = now
            self.send_progress()

    def send_progress(self) -> None:
        """Report the newest progress, if it is not reported."""
        if self._unsent and self._position is not None and self._first_position is not None:
            (start, when), (position, now) = self._first_position, self._position
            self._unsent = False
            used = self._validated, self._waited
            self._link.send(Advanced(start, position, now - when, *used))

    def validated(self, seconds: float) -> None:
        """Count seconds as validation."""
        self._count(validated=max(0.0, float(seconds)))

    def _count(self, validated: float = 0.0, waited: float = 0.0) -> None:
        """Count seconds that were no training; those before the first position are the start's."""
        if self._first_position is not None:
            self._validated += validated
            self._waited += waited
            self._unsent = True

    def horizon(self, last_step: int) -> None:
        """Report the last step of the objective."""
        if self.rank == 0:
            self._link.send(LastStep(int(last_step)))

    def even(self, batch: int) -> None:
        """Report that the number of slots must divide the batch."""
        if self.rank == 0:
            self._link.send(BatchSize(int(batch)))

    def regime(self, name: str) -> None:
        """Name what decides how long a step takes; it comes before the report that follows."""
        if self.rank == 0 and name != self._regime:
            self._link.send(RegimeNamed(name))
            self._regime = name

    def limit_slots(self, slots: int, reason: str) -> None:
        """Report that the trial cannot train on more slots."""
        slots = plain_number(slots)
        at_most(slots)  # raises for an invalid limit
        self._link.send(Limited(slots, reason))

    def keep_slots(self) -> None:
        """Ask that no further plan pauses or resizes the trial."""
        self._link.send(Pausable(False))

    def publish(self, path: Path, *, step: int, value: float | None = None) -> None:
        """Make a finished file the trial's newest checkpoint."""
        if self.rank == 0:
            step, value = checked_step(step), None if value is None else float(value)
            try:
                self._store_checkpoint(path, checksum(path), step, value)
            except OSError as error:
                self._link.send(NotSaved(step, str(error)))

    def save(
        self,
        write: Callable[[Path], Any],
        *,
        step: int,
        value: float | None = None,
        name: str | None = None,
    ) -> Path | None:
        """Write a checkpoint completely or not at all, and publish it."""
        if self.rank != 0:
            return None
        step, value = checked_step(step), None if value is None else float(value)
        try:
            path = self.folder / (name or f"{self.fence}-{step}-{os.urandom(2).hex()}.ckpt")
            self._store_checkpoint(path, write_checked(path, write), step, value)
        except OSError as error:
            self._link.send(NotSaved(step, str(error)))
            return None
        return path

    def _store_checkpoint(self, path: Path, found: str, step: int, value: float | None) -> None:
        """Upload a file to the checkpoint store, and publish it only then."""
        location: Location = path
        if self._store is not None:
            location = join_location(self._store, path.name)
            upload(path, str(location))
        crashpoint("checkpoint.publish")
        self._link.send(Saved(str(location), step, value, path.stat().st_size, found))

    def keep_warm(self, asked_to_go: Callable[[], bool] = lambda: False) -> None:
        """Release the slot and wait for the trial's next segment in this process."""
        self._link.send(StaysWarm())
        resumed = self._link.next_segment(asked_to_go)
        self.fence = resumed.fence
        # CPU slots are alike, and this may be another one.
        os.environ[DEVICES] = ",".join(resumed.devices)
        self._begin()

    def leave(self, directive: Directive | None = None) -> NoReturn:
        """End the segment here."""
        raise SegmentEnd(directive or self._link.newest)


class RankTrial(Trial):
    """An Optuna trial that sends all calls to the worker.

    Each rank calls for itself and gets the same answer, since the trial is one.
    """

    def __init__(self, link: Link, segment: RankSegment, number: int) -> None:
        self._link = link
        self._segment = segment
        self._number = number
        self._pausable = False
        self._sent_unpausable = False
        self._asked = 0

    @property
    def segment(self) -> RankSegment:
        """Where to resume from, where to save, whether to leave."""
        self._pausable = True  # an objective that uses this can resume
        if self._sent_unpausable:
            self._send_pausable(True)
        return self._segment

    def _send_pausable(self, pausable: bool) -> None:
        self._sent_unpausable = not pausable
        self._link.send(Pausable(pausable))

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """As in Optuna."""
        return float(self._link.request("suggest_float", name, low, high, step=step, log=log))

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        """As in Optuna."""
        return int(self._link.request("suggest_int", name, low, high, step=step, log=log))

    def suggest_categorical(  # type: ignore[override]
        self, name: str, choices: Sequence[CategoricalChoiceType]
    ) -> CategoricalChoiceType:
        """As in Optuna."""
        choices = tuple(choices)  # of a range or a set, too
        chosen = self._link.request("suggest_categorical", name, choices)
        restored: CategoricalChoiceType = restored_choice(choices, chosen, name)
        return restored

    def suggest_uniform(self, name: str, low: float, high: float) -> float:
        """As in Optuna; use :meth:`suggest_float`."""
        return self.suggest_float(name, low, high)

    def suggest_loguniform(self, name: str, low: float, high: float) -> float:
        """As in Optuna; use :meth:`suggest_float`."""
        return self.suggest_float(name, low, high, log=True)

    def suggest_discrete_uniform(self, name: str, low: float, high: float, q: float) -> float:
        """As in Optuna; use :meth:`suggest_float`."""
        return self.suggest_float(name, low, high, step=q)

    def report(self, value: float, step: int) -> None:
        """Report a value; in a gang, only the first rank's counts."""
        if self._segment.rank != 0:
            return
        try:
            value = float(value)
        except (TypeError, ValueError):
            raise TypeError(
                f"The `value` argument is of type {type(value).__name__!r} but supposed to be a "
                "float."
            ) from None
        step = checked_step(step)
        if not self._pausable and not self._sent_unpausable:
            self._send_pausable(False)
        self._segment.send_progress()  # the plan that sees the report sees the position, too
        self._link.send(Reported(value, step, self._segment.trained))
        self._segment.await_plan(step)
        if not self._segment.reports_position:
            self._segment.advance(float(step))

    def should_prune(self) -> bool:
        """Whether to stop; the n-th call answers the same on every rank.

        An objective that never uses its segment cannot pause, so a pause ends it. Plans do not
        pause such trials; only a worker that leaves or loses the slot does.
        """
        directive = self._agreed()
        final = directive.kind is Kind.STOP
        return final or (directive.kind is Kind.PAUSE and not self._pausable)

    def out_of_time(self) -> bool:
        """Whether the deadline ends the trial here; call it before :meth:`should_prune`."""
        return self._agreed().deadline

    def _agreed(self) -> Directive:
        if self._segment.world_size == 1:
            return self._segment.newest()
        self._asked += 1
        return self._segment.acknowledge(self._link.agreed_directive(-self._asked))

    def set_user_attr(self, key: str, value: Any) -> None:
        """As in Optuna."""
        if self._segment.rank == 0:
            self._link.request("set_user_attr", key, value)

    def set_constraint(self, key: str, value: float) -> None:
        """As in Optuna."""
        if self._segment.rank == 0:
            self._link.request("set_constraint", key, value)

    @property
    def constraints(self) -> dict[str, float]:
        """As in Optuna."""
        return dict(self._link.request("constraints"))

    def set_system_attr(self, key: str, value: Any) -> None:
        """As in Optuna 4."""
        if self._segment.rank == 0:
            self._link.request("set_system_attr", key, value)

    @property
    def system_attrs(self) -> dict[str, Any]:
        """As in Optuna 4."""
        return dict(self._link.request("system_attrs"))

    @property
    def study(self) -> RankStudy:  # type: ignore[override]
        """The part of the study that an objective may use."""
        return RankStudy(self._link, self._segment.rank)

    @property
    def storage(self) -> RankStorage:  # type: ignore[override]
        """The part of the storage that helpers of Optuna use."""
        return RankStorage(self._link, self._segment.rank)

    @property
    def _trial_id(self) -> int:  # type: ignore[override]
        return int(self._link.request("trial_id"))

    @property
    def relative_params(self) -> dict[str, Any]:
        """As in Optuna."""
        return dict(self._link.request("relative_params"))

    @property
    def params(self) -> dict[str, Any]:
        """As in Optuna."""
        return dict(self._link.request("params"))

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """As in Optuna."""
        return dict(self._link.request("distributions"))

    @property
    def user_attrs(self) -> dict[str, Any]:
        """As in Optuna."""
        return dict(self._link.request("user_attrs"))

    @property
    def datetime_start(self) -> datetime.datetime | None:
        """As in Optuna."""
        started: datetime.datetime | None = self._link.request("datetime_start")
        return started

    @property
    def number(self) -> int:
        """As in Optuna."""
        return self._number

    def __copy__(self) -> RankTrial:
        """The trial itself: it has no state of its own."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> RankTrial:
        """The trial itself, too."""
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A trial in a worker stays in its process: send its number, its parameters or its "
            "reports to others."
        )

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"A trial in a worker has no {name!r}, since only the worker uses the storage: use "
            "suggest_float and its like, report, should_prune, set_user_attr, trial.study or "
            "segment(trial)."
        )
