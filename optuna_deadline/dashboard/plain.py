"""Updates optuna-dashboard for a study that ``study.optimize`` trains.

There is no planner, so the process that ends a trial writes, rarely and in one transaction; the
last write stays. Without slots there is no timeline and no budget: the page shows the forecast,
the rungs and the note.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

import sqlalchemy as sa
from optuna.study import Study

from optuna_deadline.dashboard.attributes import DashboardAttributes
from optuna_deadline.dashboard.notes import study_note
from optuna_deadline.dashboard.publisher import FIRST, figures_within
from optuna_deadline.history.forecast import forecast
from optuna_deadline.history.reader import plain_history
from optuna_deadline.study.terms import Terms
from optuna_deadline.visualization._forecast import chart_forecast
from optuna_deadline.visualization._rungs import chart_rungs

_logger = logging.getLogger("optuna_deadline")

LEAST = 30.0  #: seconds between two passes of a process
_SHARE = 20.0  # times as long as a pass took
_CALM = 5.0  # seconds before the deadline in which no pass begins


class PlainPublisher:
    """Publishes one study from one process.

    Args:
        study: The study.
        attributes: Writes what the dashboard reads.
        clock: Seconds that only ever rise.
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
    def of(cls, study: Study, engine: sa.Engine) -> PlainPublisher | None:
        """A study's; None where Optuna keeps it elsewhere than in the table's database."""
        attributes = DashboardAttributes.of(engine, study)
        return None if attributes is None else cls(study, attributes)

    def work(self, terms: Terms, left: float) -> None:
        """One pass, if it is time for one; what goes wrong in it is said once.

        Args:
            terms: The study's, as read just now.
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
        """Read the trials, and write the figures and the note."""
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
