"""The study's sampler, called in a thread of its own while the worker keeps its leases."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import wait
from contextlib import suppress
from typing import TypeVar

from optuna.study import Study
from optuna.trial import Trial

from optuna_deadline._threads import BackgroundQueue
from optuna_deadline.planning.optuna_storage import unless_deleted
from optuna_deadline.planning.sampling import SamplerErrors
from optuna_deadline.worker.database_errors import DATABASE_ERRORS

#: Seconds between two looks at the leases while the sampler works.
_LOOK_SECONDS = 0.1

T = TypeVar("T")


class TrialSampler:
    """Makes Optuna trials of a worker and lets the sampler choose their parameters.

    A sampler may take longer than a lease lives: a Gaussian process on thousands of trials.

    Args:
        study: The Optuna study.
        keep_leases: Renews the worker's leases where that is due; called again and again.
    """

    def __init__(self, study: Study, keep_leases: Callable[[], None]) -> None:
        self._study = study
        self._keep_leases = keep_leases
        self._queue = BackgroundQueue("optuna-deadline-sampler")
        self.errors = SamplerErrors()

    def open_trial(self, trial_id: int) -> Trial:
        """The Optuna trial with this id, whose sampler sees all trials that have ended."""
        return self.call(lambda: self._open(trial_id))

    def _open(self, trial_id: int) -> Trial:
        with unless_deleted(self._study):
            # Samplers read the trials from a cache of their thread, which Optuna empties in
            # `study.ask`; here the planner asks, in another thread.
            self._study._thread_local.cached_all_trials = None
            self._study.get_trials(deepcopy=False)  # the storage's cache knows what others opened
            return Trial(self._study, trial_id)

    def call(self, work: Callable[[], T]) -> T:
        """Do it in the sampler's thread, and keep the leases meanwhile."""
        future = self._queue.submit(work)
        while not wait([future], _LOOK_SECONDS).done:
            with suppress(*DATABASE_ERRORS):  # the table thread's next pass says so
                self._keep_leases()
        return future.result()

    def close(self) -> None:
        """Call the sampler no more."""
        self._queue.close(0.0)
