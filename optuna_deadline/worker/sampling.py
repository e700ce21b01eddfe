"""Calls the study's sampler in a separate thread while the worker renews its leases."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import suppress
from typing import TypeVar

from optuna.study import Study
from optuna.trial import Trial

from optuna_deadline._optuna import forget_cached_trials, storage_of
from optuna_deadline._threads import BackgroundQueue
from optuna_deadline.planning.optuna_storage import unless_deleted
from optuna_deadline.planning.sampling import SamplerErrors
from optuna_deadline.worker.database_errors import DATABASE_ERRORS

_logger = logging.getLogger("optuna_deadline")

#: Seconds between two checks of the leases while the sampler works.
_LOOK_SECONDS = 0.1

T = TypeVar("T")


class SamplerTooSlow(Exception):
    """The sampler still works, and nothing waits for its answer any more."""


class TrialSampler:
    """Creates a worker's Optuna trials and samples their parameters.

    A sampler can take longer than a lease lasts: a Gaussian process on thousands of trials.

    Args:
        study: The Optuna study.
        keep_leases: Renews the worker's leases if due; called repeatedly.
        may_start: Whether trials may still start.
    """

    def __init__(
        self,
        study: Study,
        keep_leases: Callable[[], None],
        may_start: Callable[[], bool],
    ) -> None:
        self._study = study
        self._keep_leases = keep_leases
        self._may_start = may_start
        self._warned = self._opened = False
        self._queue = BackgroundQueue("optuna-deadline-sampler")
        self.errors = SamplerErrors()

    def open_trial(self, trial_id: int) -> Trial:
        """The Optuna trial with this id; its sampler sees all ended trials.

        Raises:
            SamplerTooSlow: No trial may start any more.
        """
        return self.call(lambda: self._open(trial_id), self._may_start)

    def _open(self, trial_id: int) -> Trial:
        with unless_deleted(self._study):
            # Samplers read trials from a cache of their thread, which Optuna empties in
            # `study.ask`; here the planner asks, in another thread.
            forget_cached_trials(self._study)
            self._study.get_trials(deepcopy=False)  # reads the trials of other processes
            if not self._opened:
                self._draw_apart(trial_id)
            return Trial(self._study, trial_id)

    def _draw_apart(self, trial_id: int) -> None:
        """Drop the seed unless this worker starts the study: the same script has the same one."""
        trial = storage_of(self._study).get_trial(trial_id)
        if trial.number > 0 or trial.params:
            self._study.sampler.reseed_rng()
        self._opened = True

    def call(self, work: Callable[[], T], awaited: Callable[[], bool]) -> T:
        """Run a function in the sampler's thread and renew the leases in the meantime.

        Args:
            work: The function.
            awaited: Whether anything waits for its result.

        Raises:
            SamplerTooSlow: Nothing waits for it any more.
        """
        future, began = self._queue.submit(work), time.monotonic()
        while not wait([future], _LOOK_SECONDS).done:
            with suppress(*DATABASE_ERRORS):  # the table thread's next pass reports it
                self._keep_leases()
            if not awaited():
                self._warn(time.monotonic() - began)
                raise SamplerTooSlow
        return future.result()

    def _warn(self, seconds: float) -> None:
        if not self._warned and seconds >= 1:
            _logger.warning(
                "The sampler %s has worked on one trial for %.0f s, and this worker does not wait "
                "for it any longer.", self._study.sampler, seconds,
            )  # fmt: skip
            self._warned = True

    def close(self) -> None:
        """Stop the thread."""
        self._queue.close(0.0)
