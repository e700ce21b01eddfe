"""Opens and ends a study's trials, in Optuna first and then in the table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_deadline._crashpoints import crashpoint
from optuna_deadline._optuna import CELL, ENQUEUED, id_of_trial, open_with, storage_of
from optuna_deadline.allocation.records import PlannedTrial, ReportRow
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.errors import LeaseLost
from optuna_deadline.planning.feasibility import known_feasibility
from optuna_deadline.planning.optuna_storage import (
    may_open,
    read_trial,
    store_values,
    thinned,
    unless_deleted,
)
from optuna_deadline.planning.reading import Reading
from optuna_deadline.planning.sampling import StoppableStudy, cells_to_begin

_logger = logging.getLogger("optuna_deadline")
_STATES = {
    "complete": TrialState.COMPLETE,
    "retired": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}


@dataclass(frozen=True)
class TrialParameters:
    """The parameters and user attributes of a trial."""

    params: Mapping[str, Any]
    user_attrs: Mapping[str, Any]


def with_parameters(reading: Reading, known: Mapping[int, TrialParameters]) -> Reading:
    """The reading whose trials show their parameters."""
    trials = tuple(
        replace(view, params=known[view.number].params, user_attrs=known[view.number].user_attrs)
        if view.number in known
        else view
        for view in reading.snapshot.trials
    )
    return replace(reading, snapshot=replace(reading.snapshot, trials=trials))


class Trials(Protocol):
    """The study's own record of its trials, beside the allocation table."""

    def open(self, params: Mapping[str, Any] | None = None) -> tuple[int, int]:
        """Open a trial; returns its number and its id.

        Args:
            params: Its parameters; None leaves them to the sampler.

        Raises:
            StudyGone: The study was deleted.
        """

    def parameters(self) -> Mapping[int, TrialParameters]:
        """The parameters of all trials, as far as they are known."""

    def exhausted(self) -> bool:
        """Whether the search is exhausted, so that no new trial may start."""

    def end(self, planned: PlannedTrial, reports: Callable[[], list[ReportRow]]) -> None:
        """End a trial as the table has it; an ended trial stays as it is.

        Args:
            line: Its row in the table.
            reports: Reads its reports from the table.

        Raises:
            StudyGone: The study was deleted.
        """

    def drop(self, number: int) -> None:
        """End a trial that was opened and never trained.

        If its configuration was enqueued, it is enqueued again.
        """

    def end_strays(self, known: set[int]) -> None:
        """End all such trials that other processes opened and never registered in the table."""

    def configured_strays(self) -> list[tuple[int, int]]:
        """(number, id) of trials without parameters whose configuration no other trial will have.

        Some may be in the table.
        """

    def ended_as_loser(self, planned: PlannedTrial) -> bool:
        """Whether the study's record has an end of the trial that cannot win."""

    def feasibility(self, numbers: Collection[int] | None = None) -> Mapping[int, int]:
        """What is known of the constraints of all trials, or of some."""


class OptunaTrials:
    """The trials of an Optuna study."""

    def __init__(self, study: Study) -> None:
        self._study = StoppableStudy(study)
        self._stopped = False

    def open(self, params: Mapping[str, Any] | None = None) -> tuple[int, int]:
        """Ask the study for a trial; its parameters are sampled on the worker that trains it."""
        with unless_deleted(self._study):
            if params is not None:
                return open_with(self._study, params)
            trial = self._study.ask()
        return trial.number, id_of_trial(trial)

    def parameters(self) -> Mapping[int, TrialParameters]:
        """By trial; given parameters count before the objective has asked for them."""
        with unless_deleted(self._study):
            trials = self._study.get_trials(deepcopy=False)
        return {
            trial.number: TrialParameters(
                {**trial.system_attrs.get(ENQUEUED, {}), **trial.params}, trial.user_attrs
            )
            for trial in trials
        }

    def exhausted(self) -> bool:
        """Whether the sampler has stopped the study, or each of its configurations has a trial.

        Enqueued configurations run in any case, unless an objective has stopped the study.
        """
        with unless_deleted(self._study):
            if not may_open(self._study):
                return True
            if not self._stopped and cells_to_begin(self._study) != 0:
                return False
            states = (TrialState.WAITING,)
            return not self._study.get_trials(deepcopy=False, states=states)

    def end(self, planned: PlannedTrial, reports: Callable[[], list[ReportRow]]) -> None:
        """Report a trial's end and its missing reports to Optuna."""
        state = _STATES[planned.state]
        values = planned.value if state is TrialState.COMPLETE else None
        try:
            with self._tolerate_other_processes():
                self._report_all(planned, reports)
                crashpoint("tell.before")
                self._tell_optuna(planned.number, values, state)
        except ValueError as error:
            _logger.warning("Optuna did not accept the end of trial %d: %s", planned.number, error)

    def _report_all(self, planned: PlannedTrial, reports: Callable[[], list[ReportRow]]) -> None:
        """Store reports that a worker wrote to the table before it died, but not to Optuna."""
        rows = reports()
        if not rows:
            return
        storage = storage_of(self._study)
        trial = storage.get_trial(planned.trial_id)
        if trial.state.is_finished():
            return
        known = trial.intermediate_values
        missing = thinned(rows, known)
        last = max(rows, key=lambda row: row.step)  # Optuna's value of a PRUNED trial
        if last.step not in known:
            missing.setdefault(last.step, last.value)
        if missing:
            store_values(storage, planned.trial_id, missing)

    def drop(self, number: int) -> None:
        """End it as PRUNED; it has neither parameters nor reports.

        An enqueued configuration is enqueued again first: if the process dies in between, it is
        tried twice.
        """
        with self._tolerate_other_processes():
            trial = read_trial(self._study, number)
            fixed = trial.system_attrs.get(ENQUEUED)
            if fixed is not None and not trial.state.is_finished():
                self._study.enqueue_trial(fixed, user_attrs=trial.user_attrs)
            self._tell_optuna(number, None, TrialState.PRUNED)

    def end_strays(self, known: set[int]) -> None:
        """End trials that a dead planner opened and never registered in the table.

        They have neither parameters nor reports. Trials of plain workers have some and are left
        alone.
        """
        for trial in self._strays(known):
            self.drop(trial.number)

    def configured_strays(self) -> list[tuple[int, int]]:
        """Unused trials with a configuration from the queue or from a grid."""
        return [
            (trial.number, id_of_trial(trial))
            for trial in self._strays(set())
            if trial.system_attrs.keys() & {ENQUEUED, CELL}
        ]

    def ended_as_loser(self, planned: PlannedTrial) -> bool:
        """Whether it is PRUNED or FAIL, whichever process reported it."""
        with unless_deleted(self._study):
            state = read_trial(self._study, planned.number).state
        return state.is_finished() and state is not TrialState.COMPLETE

    def feasibility(self, numbers: Collection[int] | None = None) -> Mapping[int, int]:
        """See :mod:`optuna_deadline.planning.feasibility`."""
        with unless_deleted(self._study):
            return known_feasibility(self._study, numbers)

    def _strays(self, known: set[int]) -> list[FrozenTrial]:
        with unless_deleted(self._study):
            return [
                trial
                for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
                if not trial.params and not trial.intermediate_values
                if trial.number not in known
            ]

    def _tell_optuna(self, number: int, value: float | None, state: TrialState) -> None:
        self._study.stopped = False
        try:
            self._study.tell(number, value, state=state, skip_if_finished=True)
        except (UpdateFinishedTrialError, ValueError):
            raise
        except (
            Exception
        ) as error:  # an error of the sampler's after_trial: the end is stored all the same
            if not read_trial(self._study, number).state.is_finished():
                raise
            words = "%s failed after trial %d, whose end is stored: %r"
            _logger.warning(words, self._study.sampler, number, error)
        # BruteForceSampler stops after any trial without parameters.
        if self._study.stopped and not self._stopped and read_trial(self._study, number).params:
            self._stopped = True
            _logger.info("The search space is exhausted: no new trial starts.")

    @contextmanager
    def _tolerate_other_processes(self) -> Iterator[None]:
        """Ignore that another process has ended the trial or deleted the study in between."""
        with unless_deleted(self._study), suppress(UpdateFinishedTrialError):
            yield


class TrialOpener:
    """Opens the trials of a study for its planner.

    Args:
        trials: The study's own record of its trials.
        table: The allocation table.
        worker_id: The worker of the planner.
    """

    def __init__(self, trials: Trials, table: AllocationTable, worker_id: str) -> None:
        self._trials = trials
        self._table = table
        self._worker_id = worker_id
        # Optuna's answer that the table does not have yet
        self._unregistered: tuple[int, int, int | None] | None = None
        self._may_have_strays = True  # whether there may be trials that only Optuna knows

    def begin_term(self) -> None:
        """Look for strays: the planner of the last term may have died between the two writes."""
        self._may_have_strays = True

    def exhausted(self) -> bool:
        """Whether the search is exhausted and no trial waits to be registered."""
        return self._unregistered is None and self._trials.exhausted()

    def open(
        self, term: int, params: Mapping[str, Any] | None = None, parent: int | None = None
    ) -> int:
        """Open a trial; returns its number.

        After a database error, the next call continues with the same trial.

        Args:
            term: The planner's term.
            params: Its parameters; None leaves them to the sampler.
            parent: The trial whose checkpoint it starts from.

        Raises:
            LeaseLost: Another term has begun.
        """
        if self._unregistered is None:
            self._may_have_strays = True  # until the answer arrives
            self._unregistered = (*self._trials.open(params), parent)
            self._may_have_strays = False
        number, trial_id, parent = self._unregistered
        try:
            self._table.open_trial(self._worker_id, term, number, trial_id, parent)
        except LeaseLost:
            # The planner of the current term may have looked for strays already.
            self._drop_unregistered()
            raise
        self._unregistered = None
        return number

    def register_strays(self, term: int) -> None:
        """Register configurations that were opened and never came to the table.

        They were enqueued or are cells of a grid, so no other trial will have them.

        Raises:
            LeaseLost: Another term has begun.
        """
        if not self._may_have_strays:
            return
        self._drop_unregistered()
        strays = dict(self._trials.configured_strays())
        known = {planned.number for planned in self._table.trials(list(strays))} if strays else ()
        for number in sorted(strays.keys() - known):
            self._table.open_trial(self._worker_id, term, number, strays[number])
        self._may_have_strays = False

    def _drop_unregistered(self) -> None:
        """Drop an unregistered trial; it is in the table if only the answer was lost."""
        if self._unregistered is None:
            return
        number, *_ = self._unregistered
        if all(planned.number != number for planned in self._table.trials()):
            self._trials.drop(number)
        self._unregistered = None
