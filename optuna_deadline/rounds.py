"""Training that a framework does by itself, and that calls back after each round or epoch.

The callbacks of XGBoost, LightGBM, CatBoost and Keras are made of it: what to do after a round is
decided apart from doing it, since some frameworks let no exception through.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.exceptions import TrialPruned

from optuna_deadline._numbers import plain_number
from optuna_deadline._out_of_time import out_of_time
from optuna_deadline.checkpoints.folders import working_folder
from optuna_deadline.directives import Directive, Kind
from optuna_deadline.errors import DeadlineError, check_counts
from optuna_deadline.fits import begin_fit
from optuna_deadline.plain_attributes import PlainAttributes
from optuna_deadline.plain_data import read_plain, write_plain
from optuna_deadline.segments import take_one_slot
from optuna_deadline.values.scores import BestValue

_logger = logging.getLogger("optuna_deadline")

_STATE, _OTHERS = "optuna_deadline.json", "callbacks"  # in the folder of a checkpoint
_BEST_EVERY = 1.0  # seconds between two checkpoints of best values: a round may take a millisecond


@dataclass(frozen=True)
class Move:
    """What follows a round."""

    save: bool = False
    stop: bool = False  #: the training ends here, or the segment
    leave: Directive | None = None  #: after saving
    pruned: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether the next round follows at once."""
        return not (self.save or self.stop)


GO_ON = Move()


class Rounds:
    """The rounds of one trial: reports, checkpoints, and the end of a segment.

    Args:
        trial: The trial that the objective was called with.
        rounds: The number of rounds of a whole training.
        report_every: Rounds between two reports.
        save_every: Seconds between two checkpoints without a best value, under a worker.
        fit: The name of the training, if the trial has several.
        remedy: How a framework continues a model, as the end of a sentence.
    """

    def __init__(
        self,
        trial: Any,
        rounds: int,
        *,
        report_every: int = 1,
        save_every: float = 60.0,
        fit: str | None = None,
        remedy: str = "",
    ) -> None:
        rounds, report_every = plain_number(rounds), plain_number(report_every)
        check_counts(rounds=rounds, report_every=report_every)
        self._trial, self.rounds, self._every = trial, rounds, report_every
        self.save_every, self._remedy = save_every, remedy
        self._segment = begin_fit(trial, fit, first=1)
        self.validated = self._segment.validated  #: takes the seconds of a validation
        self.elastic = self._segment.elastic
        self.done = 0  #: the rounds before this segment
        self._round = 0  # the last one
        self._value: float | None = None  # the last report
        self._reported = 0  # its round
        self._best = BestValue(self._segment.direction or "minimize")
        self._stays = False  # whether it could not resume
        self._unsaved = False  # whether no checkpoint has been saved since the best value
        self._saved_at = time.monotonic()
        self.folder = self._segment.resume_dir()  #: what the segment before has saved
        if self.elastic:
            take_one_slot(self._segment, "its framework trains it in one process")
            self._segment.horizon(rounds)
        #: Numbers and texts that a framework needs to go on, kept in checkpoints.
        self.kept: dict[str, Any] = {}
        self._others = PlainAttributes(())
        self._warned = False
        if self.folder is not None:
            state = json.loads((self.folder / _STATE).read_text())
            self.done = self._round = state["round"]
            self._value, self._best.value = state["value"], state["best"]
            self.kept = state["kept"]
            if self._segment.ended:
                self.rounds = self.done  # also after an early stop

    @property
    def ended(self) -> bool:
        """Whether it is one of several fits, and has ended in an earlier segment."""
        return self._segment.ended

    def working_file(self, name: str) -> Path:
        """A file of this segment alone, for a framework that writes by itself."""
        folder = working_folder(self._segment, "files", self._segment.number)
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / name

    @property
    def left(self) -> int:
        """The rounds that are left."""
        return self.rounds - self.done

    def begin(self) -> None:
        """Begin the training; before its first round, this may be called again.

        Raises:
            DeadlineError: It is the second one, and a trial that resumes would mix them.
        """
        if self._round > self.done and self.elastic:
            raise _second_training()

    def watch(self, others: Iterable[Any], known: Collection[str] = ()) -> None:
        """Let what training changes in attributes of other objects go on, such as callbacks'.

        Args:
            others: The objects, once they have begun.
            known: Names of attributes that the framework sets itself.
        """
        self._others = PlainAttributes(others, known, with_globals=True)
        if self.folder is not None:
            self._others.restore(read_plain(self.folder / _OTHERS))

    def after(self, number: int, value: Callable[[], float] | None, *, ends: bool = False) -> Move:
        """Report after a round, and decide what follows.

        Args:
            number: The number of the round, from 1 over all segments.
            value: Returns its value; None if it has none.
            ends: Whether the training has been ended here by something else.

        Raises:
            DeadlineError: It does not follow the round before, or follows the last one.
        """
        if self.ended:
            return Move(stop=number >= self.rounds)
        if number <= self.done:
            raise self.begun_anew()
        if number <= self._round:
            raise _second_training()
        if number > self.rounds:
            raise DeadlineError(
                f"The training goes on after round {self.rounds}, the last one that "
                "DeadlineCallback was given: give both the same number, and let a trial that "
                "resumes train only what is left of it."
            )
        self._round, last = number, ends or number == self.rounds
        self._segment.progress(number)
        if number % self._every and not last:
            value = None
        improved = value is not None and self._report(value())
        if not self.elastic:
            return self._plain_move(value is not None)
        directive = self._segment.directive()
        if directive.kind is Kind.STOP:
            return Move(self._unsaved, True, directive)
        if directive.leave and not last and not self._stays:
            return Move(True, True, directive)
        since = time.monotonic() - self._saved_at
        due = (improved and since >= _BEST_EVERY) or since >= self.save_every
        return Move(due or (last and self._unsaved))

    def begun_anew(self) -> DeadlineError:
        """The error of a training that does not continue its model."""
        return DeadlineError(
            f"The trial resumes after round {self.done}, and its training begins anew: "
            f"{self._remedy}."
        )

    def stay(self, reason: str) -> None:
        """Let the trial keep its slot, since a resumed training would be another one."""
        if self.elastic and not self._stays:
            self._stays = True
            self._segment.keep_slots()
            _logger.warning("The trial keeps its slot to its end: %s.", reason)

    def obey(self, move: Move, write: Callable[[Path], Any]) -> bool:
        """Save, leave and prune, if that follows; returns whether the training stops.

        Args:
            move: What follows.
            write: Writes the model into a folder.

        Raises:
            SegmentEnd: The trial leaves its slot.
            TrialPruned: In plain Optuna, the pruner ends the trial.
        """
        if move.save:
            self.save(write)
        if move.leave is not None:
            self._segment.leave(move.leave)
        if move.pruned:
            raise TrialPruned(f"Trial was pruned at round {self._round}.")
        return move.stop

    def save(self, write: Callable[[Path], Any], *, exact: bool = True) -> None:
        """Save a checkpoint.

        Args:
            write: Writes the model into a folder.
            exact: Whether that is the model of this very round, and not of the one before.
        """
        reported = exact and self._round == self._reported
        number = self._round if exact else self._round - 1
        kept = {"round": number, "value": self._value, "best": self._best.value}
        others = self._others.changed()
        self._warned = self._warned or (self.elastic and self._others.warn())
        with self._segment.save_dir(
            step=number, value=self._value if reported else None
        ) as folder:
            write(folder)
            (folder / _STATE).write_text(json.dumps({**kept, "kept": self.kept}))
            write_plain(others, folder / _OTHERS)
        self._unsaved, self._saved_at = self._unsaved and not exact, time.monotonic()

    def result(self, write: Callable[[Path], Any]) -> float:
        """The last report, of an earlier segment too, once a best or a fit's last model is saved.

        Raises:
            DeadlineError: Nothing was reported.
        """
        if self._value is None:
            raise DeadlineError(
                "Nothing was reported: pass callbacks=[deadline] and validation data to the "
                "training, and train before you ask for the result."
            )
        if self.elastic and self._unsaved:
            self.save(write)
        self._segment.end(lambda: self.save(write))
        return self._value

    def _report(self, value: float) -> bool:
        """Report; returns whether the value is the best so far."""
        self._value, self._reported = float(value), self._round
        self._segment.report(self._trial, self._value, self._round)
        best = self._best.improved(self._value)
        self._unsaved |= best
        return best

    def _plain_move(self, reported: bool) -> Move:
        if not reported:
            return GO_ON
        if out_of_time(self._trial):
            return Move(stop=True)  # not a pruning: the objective returns its last value
        if self._trial.should_prune():
            return Move(stop=True, pruned=True)
        return GO_ON


def _second_training() -> DeadlineError:
    return DeadlineError(
        "This DeadlineCallback has reported another training: make one for each, with a name such "
        'as DeadlineCallback(..., fit="fold-1").'
    )


def metric(found: Mapping[str, float], monitor: str) -> float:
    """The value of a metric.

    Raises:
        DeadlineError: There is no such metric.
    """
    if monitor in found:
        return float(found[monitor])
    have = f"it has {', '.join(sorted(found))}" if found else "pass validation data"
    raise DeadlineError(f"The training has no metric {monitor!r}: {have}.")
