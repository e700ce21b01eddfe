"""A table of a plain study's trials and the reasons for which they were pruned."""

from __future__ import annotations

from collections.abc import Iterator

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.table import Table

from optuna_deadline.pruners._complete_best import COPY_OF
from optuna_deadline.study.best import PRUNED_BECAUSE
from optuna_deadline.values.scores import score


def deadline_report(study: Study, console: Console | None = None) -> None:
    """Print a table of a study's trials, the best first, with the reasons of pruned ones.

    Args:
        study: A study with one objective.
        console: The console to print on; standard output by default.
    """
    table = Table("trial", "state", "reports", "value", "why it ended")
    for row in _rows(study):
        table.add_row(*row)
    (console or Console()).print(table)


def _rows(study: Study) -> Iterator[tuple[str, ...]]:
    direction = study.direction.name.lower()
    trials = study.get_trials(deepcopy=False)
    # Trials without a value come last.
    trials.sort(
        key=lambda one: (one.value is None, -score(one.value or 0.0, direction), one.number)
    )
    for trial in trials:
        value = "" if trial.value is None else f"{trial.value:g}"
        reports = str(len(trial.intermediate_values))
        yield str(trial.number), trial.state.name, reports, value, _why(trial)


def _why(trial: FrozenTrial) -> str:
    if (original := trial.user_attrs.get(COPY_OF)) is not None:
        return f"a copy of trial {original}"
    if trial.state is not TrialState.PRUNED:
        return ""
    return str(trial.user_attrs.get(PRUNED_BECAUSE, "the objective pruned it"))
