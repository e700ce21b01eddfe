"""DeadlinePruner: the contract of Optuna's pruners, and the rungs."""

from __future__ import annotations

import copy
import math
import pickle
import time
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pruned import pruned_study, reported

from optuna_deadline import DeadlineGate, DeadlinePruner
from optuna_deadline.allocation.database import schema
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.errors import (
    DeadlineError,
)

pytestmark = pytest.mark.nightly_but(r"^$")  # the PostgreSQL twins

NAN, INF = math.nan, math.inf


def test_no_report_is_never_pruned(storage: str | None) -> None:
    assert pruned_study(storage).ask().should_prune() is False


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@pytest.mark.parametrize("value", [0.0, -1.0, INF, -INF])
def test_the_first_trial_is_never_eliminated(
    storage: str | None, direction: str, value: float
) -> None:
    trial = pruned_study(storage, direction).ask()
    for step in range(20):
        trial.report(value, step)
        assert trial.should_prune() is False


def test_answers_are_bools_and_the_same_twice(storage: str | None) -> None:
    study = pruned_study(storage)
    trials = [reported(study, value) for value in (3.0, 1.0, 2.0)]
    for trial in trials:
        trial.should_prune()
    answers = [trial.should_prune() for trial in trials]
    assert answers == [True, False, False]  # half of a rung goes on
    assert [trial.should_prune() for trial in trials] == answers
    assert all(type(answer) is bool for answer in answers)


def test_the_trial_is_left_as_it_is(storage: str | None) -> None:
    study = pruned_study(storage)
    reported(study, 1.0).should_prune()
    trial = reported(study, 2.0)
    frozen = trial._get_latest_trial()
    before = copy.deepcopy(frozen.__dict__ | {"system_attrs": None, "_system_attrs": None})
    assert study.pruner.prune(study, frozen) is True
    after = frozen.__dict__ | {"system_attrs": None, "_system_attrs": None}
    assert after == before


def test_pickled_it_joins_the_same_study(storage_url: str) -> None:
    study = pruned_study(storage_url)
    reported(study, 1.0).should_prune()
    again: optuna.Study = pickle.loads(pickle.dumps(study))
    trial = reported(again, 2.0)
    assert trial.should_prune() is True
    pruner = again.pruner
    assert isinstance(pruner, DeadlinePruner)
    assert pruner._terms(again).deadline == study.pruner._terms(study).deadline  # type: ignore[attr-defined]


def test_pickling_keeps_the_time_since_construction(clock: Any) -> None:
    pruner = DeadlinePruner("1h")._start(clock)
    clock.advance(600)
    again = pickle.loads(pickle.dumps(pruner))
    study = optuna.create_study(pruner=again)
    assert again._terms(study).deadline - time.time() == pytest.approx(3000, abs=10)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from([-2.0, -1.0, 0.0, 0.5, 2.0, INF, -INF])),
        max_size=25,
    )
)
def test_mirrored_studies_decide_alike(reports: list[tuple[int, float]]) -> None:
    def run(direction: str, sign: float) -> list[bool]:
        study = pruned_study(None, direction)
        trials, steps, answers = [study.ask() for _ in range(5)], [0] * 5, []
        for who, value in reports:
            trials[who].report(sign * value, steps[who])
            answers.append(trials[who].should_prune())
            steps[who] += 1
        return answers

    assert run("minimize", 1.0) == run("maximize", -1.0)


def test_several_objectives_are_refused(storage: str | None) -> None:
    study = optuna.create_study(
        storage=storage, directions=["minimize"] * 2, pruner=DeadlinePruner("1h")
    )
    trial = optuna.trial.create_trial(values=[0.0, 0.0], intermediate_values={1: 0.0})
    with pytest.raises(DeadlineError, match="2 objectives"):
        study.pruner.prune(study, trial)
    with pytest.raises(DeadlineError, match="2 objectives"):
        study.optimize(lambda trial: (0.0, 0.0), n_trials=1, callbacks=[DeadlineGate()])


def test_reports_between_questions_count(storage: str | None) -> None:
    study = pruned_study(storage)
    trial = reported(study, 10.0, 20.0, 30.0, 40.0, 50.0)
    trial.should_prune()
    with open_table(study).engine.connect() as connection:
        rows = connection.execute(sa.select(schema.rung.c.rung, schema.rung.c.value)).all()
    assert sorted(tuple(row) for row in rows) == [(0, 10.0), (1, 20.0), (2, 40.0)]


class Always(optuna.pruners.BasePruner):
    """Prunes every trial."""

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        return True


def test_max_resource_is_a_normal_end(storage: str | None) -> None:
    study = pruned_study(storage, max_resource=3, inner=Always())
    worse = reported(study, 2.0)
    assert worse.should_prune() is True
    worse.report(2.0, 3)
    assert worse.should_prune() is False


def test_nan_between_rungs_prunes(storage: str | None) -> None:
    trial = reported(pruned_study(storage), 1.0, 1.0)
    assert trial.should_prune() is False
    trial.report(NAN, 3)
    assert trial.should_prune() is True
