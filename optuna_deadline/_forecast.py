"""What there will be at the deadline, of any study that has one."""

from __future__ import annotations

from dataclasses import replace

from optuna.study import Study

from optuna_deadline.deadlines import parse_deadline
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.forecast import Forecast
from optuna_deadline.history.forecast import forecast as look_ahead
from optuna_deadline.history.reading import read_history


def forecast(study: Study, *, later: str | None = None, table: str | None = None) -> Forecast:
    """The best value that a study will have at its deadline, and what each trial would come to.

    The band from ``low`` to ``high`` shall hold eight of ten outcomes; how nearly it does is shown
    by ``python -m benchmarks.backtest``. It is learned from the study's own curves and, as long as
    there are few, from the project's recording; it knows nothing of bounds of a value, as that an
    accuracy ends at 1.

    Args:
        study: A study with a deadline, in training or ended.
        later: And if the deadline were so much later, as ``"1h"``.
        table: The database of the allocation table, where the study's storage is not SQL.

    Raises:
        DeadlineError: The study has no deadline, or ``later`` is no duration.
        UnsupportedStorage: The study's storage is not SQL, and no ``table`` is given.
    """
    history = read_history(study, table)
    if later is not None:
        history = replace(history, deadline=history.deadline + duration_of(later))
    return look_ahead(history)


def duration_of(later: str) -> float:
    """The seconds of a duration.

    Raises:
        DeadlineError: It is an instant, or neither.
    """
    given = parse_deadline(later).duration
    if given is None:
        raise DeadlineError(f"{later!r} is an instant; a later deadline needs a duration as 1h.")
    return given
