"""Opening trials: Optuna is asked first and the table has them next, and neither may be lost."""

from __future__ import annotations

from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.errors import LeaseLost
from optuna_deadline.planning.trials import Trials


class Openings:
    """Opens the trials of a study, for its planner.

    Args:
        trials: The study's own record of them.
        table: The allocation table.
        me: The worker that the planner belongs to.
    """

    def __init__(self, trials: Trials, table: AllocationStore, me: str) -> None:
        self._trials = trials
        self._table = table
        self._me = me
        self._asked: tuple[int, int] | None = None  # Optuna's answer that the table has not yet
        self._unsure = True  # whether there may be trials that only Optuna knows

    def begin_term(self) -> None:
        """A planner before may have died between the two."""
        self._unsure = True

    def exhausted(self) -> bool:
        """Whether nothing is left to search, nor a trial to be put on the table."""
        return self._asked is None and self._trials.exhausted()

    def open(self, term: int) -> int:
        """Open a trial; returns its number.

        Called again after an error of the database, it goes on with the trial that it has.

        Raises:
            LeaseLost: Another term has begun.
        """
        if self._asked is None:
            self._unsure = True  # until the answer is here
            self._asked = self._trials.open()
            self._unsure = False
        number, trial_id = self._asked
        try:
            self._table.open_trial(self._me, term, number, trial_id)
        except LeaseLost:
            # The planner that rules now may have looked for strays already.
            self._give_up()
            raise
        self._asked = None
        return number

    def adopt(self, term: int) -> None:
        """Put configurations on the table that were asked for and never came there.

        They were enqueued, or are cells of a grid, which no other trial will have.

        Raises:
            LeaseLost: Another term has begun.
        """
        if not self._unsure:
            return
        self._give_up()
        known = {line.number for line in self._table.trials()}
        for number, trial_id in self._trials.configured_strays(known):
            self._table.open_trial(self._me, term, number, trial_id)
        self._unsure = False

    def _give_up(self) -> None:
        """Leave no stray; it is on the table where only that answer was lost."""
        if self._asked is None:
            return
        number, _ = self._asked
        if all(line.number != number for line in self._table.trials()):
            self._trials.drop(number)
        self._asked = None
