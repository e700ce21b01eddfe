"""DeadlinePruner: the contract of Optuna's pruners, the rungs, the deadline, the cost."""

from __future__ import annotations

import copy
import logging
import math
import pickle
import re
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optuna.storages import JournalStorage
from optuna.storages._rdb import models
from optuna.storages.journal import JournalFileBackend

from optuna_deadline import DeadlineGate, DeadlinePruner
from optuna_deadline.allocation import schema
from optuna_deadline.allocation.engine import open_table
from optuna_deadline.errors import (
    DeadlineConflict,
    DeadlineError,
    StudyGone,
    UnsupportedStorage,
)

NAN, INF = math.nan, math.inf


def _study(storage: Any = None, direction: Any = "minimize", **kwargs: Any) -> optuna.Study:
    kwargs = {"deadline": "100h", **kwargs}
    return optuna.create_study(
        storage=storage,
        direction=direction,
        study_name="s",
        load_if_exists=True,
        pruner=DeadlinePruner(**kwargs),
    )


def _reported(study: optuna.Study, *values: float, first_step: int = 1) -> optuna.Trial:
    trial = study.ask()
    for step, value in enumerate(values, start=first_step):
        trial.report(value, step)
    return trial


# The contract


def test_no_report_is_never_pruned(storage: str | None) -> None:
    assert _study(storage).ask().should_prune() is False


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@pytest.mark.parametrize("value", [0.0, -1.0, INF, -INF])
def test_the_first_trial_is_never_eliminated(
    storage: str | None, direction: str, value: float
) -> None:
    trial = _study(storage, direction).ask()
    for step in range(20):
        trial.report(value, step)
        assert trial.should_prune() is False


def test_answers_are_bools_and_the_same_twice(storage: str | None) -> None:
    study = _study(storage)
    trials = [_reported(study, value) for value in (3.0, 1.0, 2.0)]
    for trial in trials:
        trial.should_prune()
    answers = [trial.should_prune() for trial in trials]
    assert answers == [True, False, True]
    assert [trial.should_prune() for trial in trials] == answers
    assert all(type(answer) is bool for answer in answers)


def test_the_trial_is_left_as_it_is(storage: str | None) -> None:
    study = _study(storage)
    _reported(study, 1.0).should_prune()
    trial = _reported(study, 2.0, 3.0)
    frozen = trial._get_latest_trial()
    before = copy.deepcopy(frozen.__dict__ | {"system_attrs": None, "_system_attrs": None})
    assert study.pruner.prune(study, frozen) is True
    after = frozen.__dict__ | {"system_attrs": None, "_system_attrs": None}
    assert after == before


def test_pickled_it_joins_the_same_study(storage_url: str) -> None:
    study = _study(storage_url)
    _reported(study, 1.0).should_prune()
    again: optuna.Study = pickle.loads(pickle.dumps(study))
    trial = _reported(again, 2.0)
    assert trial.should_prune() is True
    pruner = again.pruner
    assert isinstance(pruner, DeadlinePruner)
    assert pruner.terms(again).deadline == study.pruner.terms(study).deadline  # type: ignore[attr-defined]


def test_pickling_keeps_the_time_since_construction(clock: Any) -> None:
    pruner = DeadlinePruner("1h", clock=clock)
    clock.advance(600)
    again = pickle.loads(pickle.dumps(pruner))
    study = optuna.create_study(pruner=again)
    assert again.terms(study).deadline - time.time() == pytest.approx(3000, abs=10)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from([-2.0, -1.0, 0.0, 0.5, 2.0, INF, -INF])),
        max_size=25,
    )
)
def test_mirrored_studies_decide_alike(reports: list[tuple[int, float]]) -> None:
    def run(direction: str, sign: float) -> list[bool]:
        study = _study(None, direction, reduction_factor=2)
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


# The rungs


def test_recorded_scores_are_checked_again_later(storage: str | None) -> None:
    study = _study(storage, "maximize")
    first, second = _reported(study, 0.5), study.ask()
    assert first.should_prune() is False
    second.report(0.7, 1)
    assert second.should_prune() is False
    # Its score at the rung is 0.5 for ever, whatever it reports now.
    first.report(0.95, 2)
    assert first.should_prune() is True


def test_every_rung_passed_counts(storage: str | None) -> None:
    study = _study(storage, reduction_factor=2)
    good = _reported(study, 1.0, 1.0, 1.0, 1.0)
    late = _reported(study, 0.5, 2.0, 2.0, 2.0)
    assert good.should_prune() is False
    assert late.should_prune() is True  # best at step 1, worst at 2 and 4


@pytest.mark.parametrize("steps", [[5, 17, 90], [0, 1, 64], [3], [1000]])
def test_gapped_steps_and_any_first_step(storage: str | None, steps: list[int]) -> None:
    study = _study(storage)
    for value, expected in ((1.0, False), (2.0, True), (0.5, False)):
        trial = study.ask()
        answers = []
        for step in steps:
            trial.report(value, step)
            answers.append(trial.should_prune())
        assert answers[-1] is expected
        number = trial.number
    with open_table(study).connect() as connection:
        rows = connection.execute(sa.select(schema.rung).where(schema.rung.c.number == number))
        expected_rungs = sum(4**i <= steps[-1] for i in range(20))
        assert sorted(row.rung for row in rows) == list(range(expected_rungs))


def test_reports_between_questions_count(storage: str | None) -> None:
    study = _study(storage)
    trial = _reported(study, 10.0, 20.0, 30.0, 40.0, 50.0)
    trial.should_prune()
    with open_table(study).connect() as connection:
        rows = connection.execute(sa.select(schema.rung.c.rung, schema.rung.c.value)).all()
    assert sorted(tuple(row) for row in rows) == [(0, 10.0), (1, 40.0)]


def test_max_resource_is_a_normal_end(storage: str | None) -> None:
    study = _study(storage, max_resource=3)
    _reported(study, 1.0).should_prune()
    worse = _reported(study, 2.0)
    assert worse.should_prune() is True
    worse.report(2.0, 3)
    assert worse.should_prune() is False


def test_nan_prunes_and_is_worse_than_anything(storage: str | None) -> None:
    study = _study(storage, reduction_factor=2)
    assert _reported(study, NAN).should_prune() is True
    bad = _reported(study, INF)
    assert bad.should_prune() is False
    assert _reported(study, 1.0).should_prune() is False
    assert bad.should_prune() is False  # of three, the one in the middle
    assert _reported(study, -INF).should_prune() is False
    assert bad.should_prune() is True


def test_nan_between_rungs_prunes(storage: str | None) -> None:
    trial = _reported(_study(storage), 1.0, 1.0)
    assert trial.should_prune() is False
    trial.report(NAN, 3)
    assert trial.should_prune() is True


def test_numpy_agrees_with_the_databases(storage: str | None) -> None:
    import numpy as np

    study = _study(storage, "maximize", reduction_factor=4)
    values = np.random.default_rng(0).normal(size=30)
    for count, value in enumerate(values, start=1):
        trial = _reported(study, float(value))
        limit = np.percentile(values[:count], 75) if count > 1 else -INF
        assert trial.should_prune() is bool(value < limit)


# The deadline


def test_ends_at_the_last_report_before_the_deadline(storage: str | None, clock: Any) -> None:
    study = _study(storage, deadline="100s", clock=clock)
    trial = study.ask()
    for step in range(1, 100):
        clock.advance(8)
        trial.report(1.0, step)
        if trial.should_prune():
            break
    # The report at 96 s is the last: the next would come at 104 s, and at 88 s 8.8 more fit.
    assert step == 12


def test_the_first_report_is_timed_from_the_trials_start(storage: str | None, clock: Any) -> None:
    study = _study(storage, deadline="100s", clock=clock)
    trial = study.ask()
    clock.advance(55)
    trial.report(1.0, 1)
    assert trial.should_prune() is True


def test_duration_counts_from_construction(storage: str | None, clock: Any) -> None:
    study = _study(storage, deadline="1h", clock=clock)
    clock.advance(3000)
    trial = _reported(study, 1.0)
    assert trial.should_prune() is False
    terms = study.pruner.terms(study)  # type: ignore[attr-defined]
    assert terms.deadline - time.time() == pytest.approx(600, abs=5)


def test_deadline_shorter_than_a_step_warns_once_and_ends(
    storage: str | None, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    study = _study(storage, deadline="60s", clock=clock)
    trial = study.ask()
    clock.advance(90)
    trial.report(1.0, 1)
    with caplog.at_level(logging.WARNING, "optuna_deadline"):
        assert trial.should_prune() is True
        assert trial.should_prune() is True
    [record] = caplog.records
    # The trial began in real time, so a busy machine adds a second.
    said = r"1 min 3\d s to its first report, longer than the 1 min from"
    assert re.search(said, record.getMessage())


def test_extension_by_another_process_is_seen(storage_url: str, clock: Any) -> None:
    study = _study(storage_url, deadline="100s", clock=clock)
    trial = study.ask()
    clock.advance(90)
    trial.report(1.0, 1)
    assert trial.should_prune() is True
    other = _study(storage_url, deadline="1h", extend=True)
    _reported(other, 0.5).should_prune()
    trial = study.ask()
    clock.advance(20)
    trial.report(0.1, 1)
    assert trial.should_prune() is False


def test_another_deadline_in_a_second_process(storage_url: str) -> None:
    _reported(_study(storage_url, deadline="2h"), 1.0).should_prune()
    with pytest.raises(DeadlineConflict, match=r"2 h .* 3 h"):
        _reported(_study(storage_url, deadline="3h"), 1.0).should_prune()
    _reported(_study(storage_url, deadline=timedelta(hours=2)), 1.0).should_prune()


def test_past_deadline_is_refused_at_once() -> None:
    with pytest.raises(DeadlineError, match="has passed; give one in the future"):
        DeadlinePruner(datetime.now(timezone.utc) - timedelta(seconds=1))
    with pytest.raises(DeadlineError, match="no time zone"):
        DeadlinePruner(datetime.now() + timedelta(hours=1))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"policy": "nonsense"}, r"choose one of .*'hypersched'"),
        ({"min_resource": 0}, "min_resource must be a whole number of steps from 1"),
        ({"min_resource": "auto"}, "min_resource"),
        ({"min_resource": 5, "max_resource": 4}, "max_resource=4 and min_resource=5"),
        ({"max_resource": 2.5}, "max_resource"),
        ({"reduction_factor": 1}, "reduction_factor must be a whole number from 2"),
        ({"reduction_factor": True}, "reduction_factor"),
    ],
)
def test_senseless_arguments_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(DeadlineError, match=message):
        DeadlinePruner("1h", **wrong)


# Where it runs


def test_threads_share_it(storage: str | None) -> None:
    study = _study(storage, reduction_factor=2)

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        for step in range(1, 9):
            trial.report(x, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return x

    study.optimize(objective, n_trials=16, n_jobs=4)
    states = [trial.state.name for trial in study.trials]
    assert set(states) <= {"COMPLETE", "PRUNED"}
    best = min(study.trials, key=lambda trial: trial.params["x"])
    assert best.state.name == "COMPLETE"


def test_two_studies_in_memory_with_one_pruner() -> None:
    pruner = DeadlinePruner("1h", reduction_factor=2)
    first, second = optuna.create_study(pruner=pruner), optuna.create_study(pruner=pruner)
    assert first._study_id == second._study_id
    assert _reported(first, 1.0).should_prune() is False
    assert _reported(second, 2.0).should_prune() is False


def test_journal_needs_table_and_works_with_it(tmp_path: Path, empty_url: str) -> None:
    journal = JournalStorage(JournalFileBackend(str(tmp_path / "journal")))
    with pytest.raises(UnsupportedStorage, match=r"JournalStorage .*table=URL"):
        _reported(_study(journal), 1.0).should_prune()
    study = _study(journal, table=empty_url, reduction_factor=2)
    assert _reported(study, 1.0).should_prune() is False
    assert _reported(study, 2.0).should_prune() is True


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("beside", [False, True])
def test_grpc_proxy_needs_table(storage_url: str, tmp_path: Path, beside: bool) -> None:
    """The table may stand beside Optuna's behind the proxy, or in a database of its own."""
    pytest.importorskip("grpc")
    from optuna.storages import GrpcStorageProxy
    from optuna.storages._grpc.server import make_server

    backend = optuna.storages.get_storage(storage_url)
    optuna.create_study(storage=backend, study_name="another")
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    server = make_server(backend, "localhost", port)
    server.start()
    proxy = GrpcStorageProxy(host="localhost", port=port)
    proxy.wait_server_ready(timeout=60)
    try:
        with pytest.raises(UnsupportedStorage, match=r"GrpcStorageProxy .*table=URL"):
            _reported(_study(proxy), 1.0).should_prune()
        table = storage_url if beside else f"sqlite:///{tmp_path / 'table.db'}"
        study = _study(proxy, table=table, reduction_factor=2)
        assert _reported(study, 1.0).should_prune() is False
        assert _reported(study, 2.0).should_prune() is True
        pruner = study.pruner
        assert isinstance(pruner, DeadlinePruner)
        assert pruner.terms(study).study_id == (2 if beside else 1)
    finally:
        proxy.close()
        server.stop(0)


@pytest.mark.postgres
def test_psycopg3(postgres_url: str) -> None:
    url = postgres_url.replace("postgresql+psycopg2", "postgresql+psycopg")
    study = _study(url, reduction_factor=2)
    for value, expected in ((1.0, False), (2.0, True), (NAN, True), (-INF, False), (3.0, True)):
        assert _reported(study, value).should_prune() is expected


def test_deleted_study_is_named(storage_url: str) -> None:
    study = _study(storage_url)
    trial = _reported(study, 1.0)
    trial.should_prune()
    frozen = trial._get_latest_trial()
    optuna.delete_study(study_name="s", storage=storage_url)
    with pytest.raises(StudyGone, match="'s' was deleted"):
        study.pruner.prune(study, frozen)
    frozen.intermediate_values = {1: 1.0, 4: 1.0}
    with pytest.raises(StudyGone, match="'s' was deleted"):
        study.pruner.prune(study, frozen)


# The cost


def _fill(study: optuna.Study, trials: int) -> None:
    """Finished trials with ten reports each, written past the ORM."""
    numbers = range(1, trials + 1)
    now = datetime.now()
    engine = study._storage._backend.engine  # type: ignore[attr-defined]
    with engine.begin() as connection:
        connection.execute(
            sa.insert(models.TrialModel.__table__),
            [
                {
                    "number": k,
                    "study_id": study._study_id,
                    "state": "COMPLETE",
                    "datetime_start": now,
                    "datetime_complete": now,
                }
                for k in numbers
            ],
        )
        table = models.TrialModel.__table__
        rows = connection.execute(sa.select(table.c.number, table.c.trial_id))
        ids = {row.number: row.trial_id for row in rows}
        connection.execute(
            sa.insert(models.TrialIntermediateValueModel.__table__),
            [
                {
                    "trial_id": ids[k],
                    "step": step,
                    "intermediate_value": float(k),
                    "intermediate_value_type": "FINITE",
                }
                for k in numbers
                for step in range(10)
            ],
        )
    with open_table(study).begin() as connection:
        connection.execute(
            sa.insert(schema.rung),
            [
                {"study_id": study._study_id, "rung": rung, "number": k, "value": float(k)}
                for k in numbers
                for rung in range(2)
            ],
        )


@pytest.mark.parametrize("trials", [10, 1000])
def test_two_statements_at_a_rung_and_one_between(
    storage_url: str, trials: int, counting: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = _study(storage_url)
    trial = study.ask()
    study.pruner.book(study)  # type: ignore[attr-defined]
    _fill(study, trials)
    monkeypatch.setattr(study, "get_trials", lambda *_, **__: pytest.fail("read all trials"))
    for step in range(20):
        trial.report(0.5, step)
        with counting(study) as sent:
            assert trial.should_prune() is False
        assert len(sent) == (2 if step in (1, 4, 16) else 1), sent
    worse = study.ask()
    for step in (0, 7):
        worse.report(1e9, step)
        with counting(study) as sent:
            assert worse.should_prune() is (step > 0)
        assert len(sent) == (2 if step else 1), sent


def test_many_threads_at_one_rung_lose_nothing(storage_url: str) -> None:
    study = _study(storage_url)
    trials = [_reported(study, float(k)) for k in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda trial: trial.should_prune(), trials))
    assert [trial.should_prune() for trial in trials] == [False] * 4 + [True] * 12
