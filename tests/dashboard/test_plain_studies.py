"""What optuna-dashboard shows of a study that ``study.optimize`` trains."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from datetime import datetime

import optuna
import optuna_dashboard
import pytest
from optuna_dashboard._custom_plot_data import get_plotly_graph_objects
from typer.testing import CliRunner

import optuna_deadline
from optuna_deadline import DeadlineGate, DeadlinePruner
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.cli import app
from optuna_deadline.dashboard import plain
from optuna_deadline.dashboard.plain import PlainPublisher
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.forecast import known_curves
from optuna_deadline.history.reader import read_history

pytestmark = pytest.mark.slow_names("postgres")


def train(trial: optuna.Trial) -> float:
    x = trial.suggest_float("x", 0.0, 1.0)
    for step in range(4):
        trial.report(x - 1 / (step + 1), step)
    return x


@pytest.fixture
def study(storage_url: str, monkeypatch: pytest.MonkeyPatch) -> optuna.Study:
    """Three trials have ended, and one trains."""
    monkeypatch.setattr(plain, "FIRST", 0.0)
    study = optuna.create_study(
        study_name="s", storage=storage_url, direction="maximize",
        sampler=optuna.samplers.RandomSampler(seed=1),
        pruner=DeadlinePruner("1h", max_resource=20),
    )  # fmt: skip
    study.optimize(train, n_trials=3, callbacks=[DeadlineGate(dashboard=True)])
    one = study.ask()
    one.report(0.1, 0)
    one.report(0.2, 1)
    return study


def test_the_gate_publishes_a_forecast_the_rungs_and_a_note(study: optuna.Study) -> None:
    attributes = study._storage.get_study_system_attrs(study._study_id)
    shown = get_plotly_graph_objects(attributes)
    assert sorted(shown) == ["deadline-forecast", "deadline-rungs"]
    assert all({"data", "layout"} == set(json.loads(text)) for text in shown.values())
    note = optuna_dashboard.get_note(study)
    assert "**Deadline**" in note and re.search(r", in (1 h|59 min \d+ s) as of ", note)
    assert "**Trials** 1 complete." in note and "**Slots**" not in note, "the first pass"


def test_a_pass_comes_seldom_and_not_at_the_end_and_an_error_ends_them(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, passes = 0.0, []
    publisher = PlainPublisher.of(study, open_table(study))
    assert publisher is not None
    publisher._clock, publisher._next = lambda: now, 0.0
    terms = optuna_deadline.study.agreement.read(open_table(study), study)
    assert terms is not None
    publish = publisher.publish
    monkeypatch.setattr(publisher, "publish", lambda terms: (passes.append(now), publish(terms)))
    for now in (0.0, 10.0, 29.0, 31.0, 62.0):
        publisher.work(terms, left=3.0 if now == 31.0 else 600.0)
    assert passes == [0.0, 62.0]
    monkeypatch.setattr(publisher, "publish", lambda terms: 1 / 0)
    now = 100.0
    for _ in range(2):
        publisher.work(terms, left=600.0)
    assert caplog.text.count("cannot be updated (ZeroDivisionError") == 1


def test_forecasts_are_made_of_optunas_own_trials(study: optuna.Study, storage_url: str) -> None:
    history = read_history(study)
    assert (
        history.plain and len(history.timelines) == 4 and history.timelines[3].state == "running"
    )
    assert all(history.started <= row.at <= history.now for row in history.reports)
    told = optuna_deadline.forecast(study)
    assert told.best == max(row.value for row in history.reports)
    assert [fan.number for fan in told.fans] == [3]
    done = CliRunner().invoke(app, ["status", "s", "--forecast", "--storage", storage_url])
    assert done.exit_code == 0 and "trial 3" in done.output and "slot-hours" not in done.output
    done = CliRunner().invoke(app, ["status", "s", "--storage", storage_url])
    assert done.exit_code == 0 and f"trial {history.improvements[-1].number}, step" in done.output
    assert done.output.count("complete") == 3 and "running" in done.output
    done = CliRunner().invoke(app, ["top", "s", "--storage", storage_url])
    assert done.exit_code == 2 and "optuna-deadline status s" in done.output
    with pytest.raises(DeadlineError, match="what-ifs are for studies with"):
        optuna_deadline.what_if(study, gpus=2)


def test_a_study_has_ended_after_its_deadline_and_last_trial(study: optuna.Study) -> None:
    study.tell(3, state=optuna.trial.TrialState.PRUNED)
    terms = optuna_deadline.study.agreement.read(open_table(study), study)
    assert terms is not None
    over = replace(terms, read=terms.deadline)
    assert plain.plain_history(over, study.trials).settled is not None
    assert plain.plain_history(terms, study.trials).settled is None


@pytest.mark.parametrize("first", [0, 1, 1000])
def test_reports_come_evenly_wherever_their_steps_begin(first: int) -> None:
    study = optuna.create_study(pruner=DeadlinePruner("1h"))
    trial = study.ask()
    for step in range(4):
        trial.report(float(step), first + step)
    terms = study.pruner._terms(study)  # type: ignore[attr-defined]
    later = replace(terms, read=terms.started + 40)
    [frozen] = study.trials
    frozen.datetime_start = datetime.fromtimestamp(terms.started)
    history = plain.plain_history(later, [frozen])
    assert [row.at - terms.started for row in history.reports] == pytest.approx([10, 20, 30, 40])
    assert history.segments[0].position_to == 4.0
    assert known_curves(history)[0].steps == (1.0, 2.0, 3.0, 4.0)


def test_a_gate_can_be_sent_to_another_process() -> None:
    assert isinstance(pickle.loads(pickle.dumps(DeadlineGate())), DeadlineGate)
