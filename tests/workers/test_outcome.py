"""What a worker returns with, and the last words of a command."""

from __future__ import annotations

import optuna
from optuna.trial import create_trial
from tables import table_of

from optuna_deadline.cli.worker import describe
from optuna_deadline.elastic import Result, agree
from optuna_deadline.elastic.result import study_result
from optuna_deadline.planning.best_model import CheckpointAvailability


def ended(study: optuna.Study) -> tuple[Result, str]:
    """The result of a study that is settled now, and what is said of it."""
    terms = agree(study, "1h")
    table = table_of(study)
    table.register("me", "host", 1, [], 1)
    term = table.elect_planner("me")
    assert term is not None
    table.settle("me", term)
    result = study_result(study, table, "maximize", CheckpointAvailability(table, "host"), None)
    return result, describe(result, terms)


def test_a_value_that_was_returned_without_a_report_is_the_result(
    sqlite_study: optuna.Study,
) -> None:
    for value in (0.25, 0.75, 0.5):
        sqlite_study.add_trial(create_trial(value=value))
    result, words = ended(sqlite_study)
    assert (result.trial_number, result.value, result.step, result.checkpoint) == (
        1,
        0.75,
        None,
        None,
    )
    assert result.params == {}
    assert words.startswith("study: best value 0.75, trial 1; checkpoint not saved.")
    assert result.why_best_differs() is None


def test_a_report_above_what_the_objective_returned_is_explained(
    sqlite_study: optuna.Study,
) -> None:
    trial = create_trial(
        value=0.5, intermediate_values={1: 0.75, 2: 0.5}, params={"x": 0.1},
        distributions={"x": optuna.distributions.FloatDistribution(0, 1)},
    )  # fmt: skip
    sqlite_study.add_trial(trial)
    result, words = ended(sqlite_study)
    assert (result.value, result.best_value, result.params) == (0.75, 0.5, {"x": 0.1})
    assert "study.best_value is 0.5: Optuna keeps what an objective returns" in words


def test_a_study_without_any_value_says_so(sqlite_study: optuna.Study) -> None:
    sqlite_study.add_trial(create_trial(state=optuna.trial.TrialState.FAIL))
    result, words = ended(sqlite_study)
    assert result.trial_number is None
    assert words == "study ended without a value: no trial reported one, or returned one."
