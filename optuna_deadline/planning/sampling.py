"""What errors of the sampler say: after some that are alike, more trials would only fail too."""

from __future__ import annotations

import re

from optuna_deadline.errors import DeadlineError

#: So many trials that fail alike are enough.
_MOST = 3


class Sampling:
    """Counts the trials of a worker for which the sampler had an error in place of a value.

    Errors are alike where they differ in numbers only. A later trial that reports, or completes,
    shows that the sampler works for some, and they are counted anew.
    """

    def __init__(self) -> None:
        self._words = ""
        self._alike = ""
        self._trials: set[int] = set()

    def failed(self, number: int, error: Exception) -> None:
        """The sampler had an error for a trial, or for a range that its objective asked for."""
        words = f"{type(error).__name__}: {error}"
        alike = re.sub(r"[\d.]+", "#", words)
        if alike != self._alike:
            self._alike, self._words = alike, words
            self._trials.clear()
        self._trials.add(number)

    def worked(self, number: int) -> None:
        """A trial has its parameters."""
        if self._trials and number > max(self._trials):
            self._trials.clear()

    @property
    def error(self) -> DeadlineError | None:
        """Why no further trial is to be tried, if it is so."""
        if len(self._trials) < _MOST:
            return None
        return DeadlineError(
            f"The sampler failed for {len(self._trials)} trials in the same way ({self._words}):"
            " mend it, or the ranges that the objective asks for, and start the worker again; the"
            " study goes on."
        )
