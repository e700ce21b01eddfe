"""What a study has found: its best trial, how to load the model, and its best value over time."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from optuna.study import Study

from optuna_deadline.allocation.records import PlannedTrial
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.checkpoints.storage import loading_code
from optuna_deadline.history.reader import read_history, table_of
from optuna_deadline.history.records import History
from optuna_deadline.planning.best_model import find_winner
from optuna_deadline.planning.feasibility import known_feasibility
from optuna_deadline.study.best import find_best
from optuna_deadline.values.scores import score


@dataclass(frozen=True)
class TrialOutcome:
    """One trial, with its best report."""

    number: int
    state: str
    value: float | None
    step: int | None
    params: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class StudyOutcome:
    """A study as it is now. Instants are seconds since the epoch, by the database's clock."""

    study: str
    direction: str
    policy: str
    started: float
    deadline: float
    ended: float  #: when it ended, or now
    over: bool  #: whether its deadline has passed, or it has ended before
    best: TrialOutcome | None
    checkpoint: str | None  #: the path or URL of the best model
    loading: str | None  #: a line of Python that loads it
    trials: tuple[TrialOutcome, ...]
    improvements: tuple[tuple[float, float], ...]  #: seconds since the start, and the best value

    @property
    def states(self) -> dict[str, int]:
        """The number of trials by state."""
        return dict(Counter(trial.state for trial in self.trials))

    @property
    def command(self) -> str | None:
        """The command that verifies and copies the best model; None if none was saved."""
        if self.checkpoint is None:
            return None
        return f"optuna-deadline load-best {shlex.quote(self.study)} --to best-model"


def read_outcome(
    study: Study,
    history: History | None = None,
    is_intact: Callable[[Checkpoint], bool] = lambda checkpoint: True,
) -> StudyOutcome:
    """Read what a study has found.

    Args:
        study: A study that has a deadline.
        history: Its history, if it is read already.
        is_intact: Whether a checkpoint is intact; by default none is read.

    Raises:
        DeadlineError: The study has no deadline.
    """
    history = history or read_history(study)
    table, _ = table_of(study)
    params = {trial.number: dict(trial.params) for trial in study.get_trials(deepcopy=False)}
    winner = find_winner(table, history.direction, is_intact, feasibility=known_feasibility(study))
    found = winner or find_best(study)
    rows = {row.number: row for row in history.trials}
    trials = {number: _trial(history, row, params) for number, row in rows.items()}
    best = None
    if found is not None:
        state = trials[found.number].state if found.number in trials else ""
        best = TrialOutcome(
            found.number, state, found.value, found.step, params.get(found.number, {})
        )
    saved = None if winner is None else winner.checkpoint
    return StudyOutcome(
        study=history.name,
        direction=history.direction,
        policy=history.policy,
        started=history.started,
        deadline=history.deadline,
        ended=history.end if history.settled is not None else min(history.now, history.deadline),
        over=history.settled is not None or history.time_left <= 0,
        best=best,
        checkpoint=None if saved is None else str(saved.path),
        loading=None if saved is None else loading_code(saved.path),
        trials=tuple(trials[number] for number in sorted(trials)),
        improvements=tuple((one.at - history.started, one.value) for one in history.improvements),
    )


def _trial(
    history: History, row: PlannedTrial, params: Mapping[int, dict[str, Any]]
) -> TrialOutcome:
    reports = history.curves_by_trial.get(row.number, [])
    best = max(reports, key=lambda one: score(one.value, history.direction), default=None)
    return TrialOutcome(
        row.number,
        row.shown_state,
        None if best is None else best.value,
        None if best is None else best.step,
        params.get(row.number, {}),
    )
