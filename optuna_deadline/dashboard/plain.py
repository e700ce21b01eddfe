"""Updates optuna-dashboard for a study that ``study.optimize`` trains.

Such a study has no planner, so each process writes after the end of a trial, at most every 30 s.
The last write stays. Without slots there is no timeline and no budget: the page shows the
forecast, the rungs and the note.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from optuna.study import Study

from optuna_deadline.allocation.database.access import Database
from optuna_deadline.dashboard.attributes import DashboardAttributes
from optuna_deadline.dashboard.notes import study_note
from optuna_deadline.dashboard.publisher import FIRST, figures_within
from optuna_deadline.history.forecast import forecast
from optuna_deadline.history.reader import plain_history
from optuna_deadline.study.terms import Terms
from optuna_deadline.visualization._forecast import chart_forecast
from optuna_deadline.visualization._rungs import chart_rungs

_logger = logging.getLogger("optuna_deadline")

LEAST = 30.0  #: seconds between two updates of a process
_SHARE = 20.0  # an update is followed by a pause this many times as long
_CALM = 5.0  # seconds before the deadline in which no update starts


class PlainPublisher:
    """Publishes one study from one process.

    Args:
        study: The study.
        attributes: Writes the attributes of the dashboard.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        study: Study,
        attributes: DashboardAttributes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._study = study
        self._attributes = attributes
        self._clock = clock
        self._next = clock() + FIRST

    @classmethod
    def of(cls, study: Study, database: Database) -> PlainPublisher | None:
        """The publisher of a study; None if it is not in the allocation table's database."""
        attributes = DashboardAttributes.of(database, study)
        return None if attributes is None else cls(study, attributes)

    def work(self, terms: Terms, left: float) -> None:
        """Update the dashboard if an update is due; log the first error only.

        Args:
            terms: The study's terms, as just read.
            left: Seconds to the deadline.
        """
        began = self._clock()
        if began < self._next or 0 < left < _CALM:
            return
        try:
            self.publish(terms)
            self._next = self._clock() + max(LEAST, _SHARE * (self._clock() - began))
        except Exception as error:
            self._next = math.inf
            _logger.warning(
                "optuna-dashboard cannot be updated (%s: %s); the study continues.",
                type(error).__name__, str(error).partition("\n")[0],
            )  # fmt: skip

    def publish(self, terms: Terms) -> None:
        """Read the trials; write the figures and the note."""
        history = plain_history(terms, self._study.get_trials(deepcopy=False))
        expected = forecast(history)
        found = figures_within(
            {
                "deadline-forecast": lambda n: chart_forecast(history, n, expected),
                "deadline-rungs": lambda n: chart_rungs(history, n),
            }
        )
        note = study_note(history, history.timelines, expected)
        self._attributes.write(found, {None: note}, {})
