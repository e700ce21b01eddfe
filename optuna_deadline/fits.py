"""Several fits in one trial, such as the folds of a cross-validation.

A trial has one checkpoint and one axis of steps. Its fits share both: the steps of a fit follow
those of the fit before, and a checkpoint of a fit also holds the last checkpoint of each fit that
has ended. In a segment that resumes, the objective runs from its beginning. A fit that had ended
loads its last state and trains no step, the interrupted fit resumes, and later fits start.

A checkpoint remains a file that ``torch.load`` reads: it is a zip archive, and the other fits are
further members of it.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from optuna_deadline.checkpoints.folders import FolderCheckpoints
from optuna_deadline.errors import DeadlineError
from optuna_deadline.segments import Segment, segment

_Method = TypeVar("_Method", bound=Callable[..., Any])
_INDEX = "fits/index.json"  # members of the archive, below its folder


@dataclass(frozen=True)
class _Record:
    """The entry of one fit in a checkpoint's index."""

    name: str
    first_step: int  # the trial's step that is the fit's step 0
    last_step: int  # the trial's step of the fit's last report


def _passed_on(method: _Method) -> _Method:
    """The same method of the trial's segment."""

    @wraps(method)
    def call(fit: FitSegment, *args: Any, **kwargs: Any) -> Any:
        return getattr(fit._whole, method.__name__)(*args, **kwargs)

    return cast(_Method, call)


class FitSegment(FolderCheckpoints, Segment):
    """The segment of one fit of a trial.

    Its steps count from the start of the fit, and :attr:`resume` is the state of this fit.
    """

    def __init__(
        self,
        whole: Segment,
        fits: TrialFits,
        record: _Record,
        resume: Path | None,
        number: int,
    ) -> None:
        self._whole = whole
        self._fits = fits
        self.record = record
        self.number = number
        self.resume = resume
        self.elastic, self.rank, self.world_size = whole.elastic, whole.rank, whole.world_size
        self.topics = fits.topics  #: topics of which the fits have warned or agreed
        self.checked = getattr(whole, "checked", False)  #: whether the command ``check`` runs it
        self.ended = False  #: whether its last state is saved
        self._ending = False
        self.last_state: Path | None = None  #: in rank 0, the file that :meth:`end` saved

    newest = _passed_on(Segment.newest)
    directive = _passed_on(Segment.directive)
    validated = _passed_on(Segment.validated)
    even = _passed_on(Segment.even)
    regime = _passed_on(Segment.regime)
    limit_slots = _passed_on(Segment.limit_slots)
    keep_slots = _passed_on(Segment.keep_slots)
    leave = _passed_on(Segment.leave)
    keep_warm = _passed_on(Segment.keep_warm)

    @property
    def fence(self) -> int:
        """Number of the segment."""
        return self._whole.fence

    @property
    def folder(self) -> Path:
        """The trial's checkpoint folder."""
        return self._whole.folder

    @property
    def direction(self) -> Any:
        """The study's direction, if the segment knows it."""
        return getattr(self._whole, "direction", None)

    def report(self, trial: Any, value: float, step: int) -> None:
        """Report a value of this fit on the trial's axis of steps."""
        step += self.record.first_step
        self.record = replace(self.record, last_step=max(self.record.last_step, step))
        trial.report(value, step)

    def progress(self, position: float) -> None:
        """Report this fit's progress."""
        self._whole.progress(self.record.first_step + position)

    def horizon(self, last_step: int) -> None:
        """Set the step at which this fit ends; a later fit sets a later step."""
        self._whole.horizon(self.record.first_step + last_step)

    def end(self, save: Callable[[], Any]) -> None:
        """Save the last state of one of several fits; later checkpoints contain it too.

        Every rank calls it.

        Args:
            save: Saves the state; not called if that is saved already, or not needed.
        """
        if self.elastic and self.record.name and not self.ended:
            self._ending = True
            save()
            self._ending, self.ended = False, True

    def publish(self, path: Path, *, step: int, value: float | None = None) -> None:
        """Make a finished file the trial's newest checkpoint."""
        if self.rank == 0:
            self._complete(path)
        self._whole.publish(path, step=self._stored(step), value=value)

    def save(
        self,
        write: Callable[[Path], Any],
        *,
        step: int,
        value: float | None = None,
        name: str | None = None,
    ) -> Path | None:
        """Write a checkpoint of this fit that also contains the fits that have ended."""

        def write_all(path: Path) -> None:
            write(path)
            self._complete(path)

        return self._whole.save(write_all, step=self._stored(step), value=value, name=name)

    def _stored(self, step: int) -> int:
        return max(self.record.first_step + step, 0)

    def _complete(self, path: Path) -> None:
        if self._ending:
            self.last_state = self._fits.place_of(self.number)
            shutil.copyfile(path, self.last_state)
        self._fits.add_ended(path, self)


class TrialFits:
    """The fits of one trial, in the order in which the objective starts them.

    Args:
        whole: The trial's segment.
    """

    def __init__(self, whole: Segment) -> None:
        self._whole = whole
        self._begun: list[FitSegment] = []
        self.topics: set[str] = set()  #: topics on which one of them has already warned or agreed
        self._saved = {} if whole.resume is None else _index_of(whole.resume)

    def begin(self, name: str | None, first: int) -> FitSegment:
        """The next fit.

        Args:
            name: Its name; None for the only fit of a trial.
            first: The number of its first step.

        Raises:
            DeadlineError: It would resume from the checkpoint of another fit.
        """
        if self._begun and self._whole.elastic:
            self._refuse(name)
        names = [fit.record.name for fit in self._begun]
        if name is not None and name in names:
            raise DeadlineError(
                f"Two fits of this trial are called {name!r}: name each by itself."
            )
        start = self._begun[-1].record.last_step + 1 - first if self._begun else 0
        record = _Record("" if name is None else name, start, start + first - 1)
        resume = self._whole.resume
        if name is not None and resume is not None:
            record, resume = self._resumed(record, resume)
        fit = FitSegment(self._whole, self, record, resume, len(self._begun))
        if resume is not None and resume != self._whole.resume:
            fit.ended, fit.last_state = True, resume
        self._begun.append(fit)
        return fit

    def place_of(self, number: int) -> Path:
        """The file with the last state of a fit, while the trial is on this host."""
        # Workers recognise the trial's files by this prefix and delete them after its end.
        name = f"segment-{self._whole.fence:06d}-fit-{number}-rank-{self._whole.rank}.ckpt"
        return self._whole.folder / name

    def add_ended(self, path: Path, current: FitSegment) -> None:
        """Add the fits that have ended before ``current`` to its checkpoint."""
        if not current.record.name:
            return
        before = [fit for fit in self._begun[: current.number] if fit.last_state]
        with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as archive:
            folder = archive.namelist()[0].partition("/")[0]
            for number, fit in enumerate(before):
                assert fit.last_state is not None
                archive.write(fit.last_state, f"{folder}/fits/{number}.ckpt")
            index = [vars(fit.record) for fit in [*before, current]]
            archive.writestr(f"{folder}/{_INDEX}", json.dumps(index))

    def _resumed(self, record: _Record, checkpoint: Path) -> tuple[_Record, Path | None]:
        """The entry of a fit in the trial's checkpoint, and the file to resume it from."""
        number = next((n for n, one in self._saved.items() if one.name == record.name), None)
        if number is None:
            return record, None
        found = self._saved[number]
        if number == max(self._saved):
            return found, checkpoint
        place = self.place_of(len(self._begun))
        with zipfile.ZipFile(checkpoint) as archive:
            folder = archive.namelist()[0].partition("/")[0]
            with archive.open(f"{folder}/fits/{number}.ckpt") as member, open(place, "wb") as file:
                shutil.copyfileobj(member, file, 1 << 20)
        return found, place

    def _refuse(self, name: str | None) -> None:
        last = self._begun[-1]
        if name is None or not last.record.name:
            raise DeadlineError(
                "This trial begins a second fit, which would go on from the first one's "
                'checkpoint: give each fit of the trial a name, such as fit="fold-1".'
            )
        if not last.ended:
            raise DeadlineError(
                f"The fit {last.record.name!r} has not ended before {name!r} begins: train one "
                "fit after the other, and call result() after each."
            )


def _index_of(checkpoint: Path) -> dict[int, _Record]:
    """The fits in a checkpoint, its own fit last; empty if the fit has no name."""
    if not zipfile.is_zipfile(checkpoint):
        return {}
    with zipfile.ZipFile(checkpoint) as archive:
        index = [name for name in archive.namelist() if name.endswith(f"/{_INDEX}")]
        found = json.loads(archive.read(index[0])) if index else []
    return {number: _Record(**one) for number, one in enumerate(found)}


_FITS = "_optuna_deadline_fits"  # an attribute of the trial object


def begin_fit(trial: Any, name: str | None, first: int = 0) -> FitSegment:
    """The segment of the trial's next fit.

    Args:
        trial: The trial that the objective was called with.
        name: The fit's name; None for the only fit of a trial.
        first: The number of its first step.

    Raises:
        DeadlineError: It would resume from the checkpoint of another fit.
    """
    fits: TrialFits | None = getattr(trial, _FITS, None)
    if fits is None:
        fits = TrialFits(segment(trial))
        setattr(trial, _FITS, fits)
    return fits.begin(name, first)
