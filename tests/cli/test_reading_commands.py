"""Commands that read a study, and those that move its deadline."""

from __future__ import annotations

import json
import math
import re
from collections import namedtuple
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from endings import end_within
from typer.testing import CliRunner

from optuna_deadline import DeadlinePruner
from optuna_deadline.allocation.database import schema
from optuna_deadline.allocation.database.limits import database_now
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.records import Assignment, Grant, NewReport
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.files import Checkpoint, checksum
from optuna_deadline.cli import app, databases, doctor
from optuna_deadline.elastic import agree
from optuna_deadline.history.reader import table_of
from optuna_deadline.live.watcher import StudyWatcher
from optuna_deadline.study import agreement
from optuna_deadline.study.terms import Given
from optuna_deadline.values.budgets import make_budget

pytestmark = [
    pytest.mark.slow_names(r"^test_what_if_is_simulated"),
    pytest.mark.nightly_but(r"^$"),
]

_VIEWS = ("events", "forecast", "pool")


@pytest.fixture
def url(sqlite_url: str, tmp_path: Path) -> str:
    """A study with one trial that trains, has reported and saved."""
    study = optuna.create_study(study_name="s", storage=sqlite_url, direction="maximize")
    terms = agree(study, "1h", Given(budget=None))
    table = AllocationTable(open_table(study), "lab", terms.study_id)
    table.register("me", "node7", 1, ["gpu:0", "gpu:1"], 0)
    term = table.elect_planner("me")
    assert term is not None
    trial = study.ask({"lr": optuna.distributions.FloatDistribution(0.0, 1.0)})
    table.open_trial("me", term, 0, trial._trial_id)
    table.write_plan("me", term, [Assignment(0, "run", "me", 2, "starts: it is free")])
    grant = table.acquire("me", 0, [1, 2])
    assert grant is not None
    for step in range(1, 6):
        table.add_reports("me", grant, [NewReport(step, 1 - 0.5 / step, 10.0 * step)])
    table.add_reports("me", grant, [NewReport(6, math.nan, 60.0)])
    table.set_progress(
        "me", grant, startup=1.0, position_from=0.0, position_to=6.0, trained=60.0, horizon=50
    )
    path = tmp_path / "best.ckpt"
    path.write_text("weights")
    table.add_checkpoint("me", grant, Checkpoint(0, grant.fence, 5, 0.9, path, 7, checksum(path)))
    return sqlite_url


def run(*words: str, code: int = 0) -> str:
    asked = CliRunner().invoke(app, list(words))
    assert asked.exit_code == code, asked.output
    return asked.output


def read(*words: str) -> Any:
    asked = CliRunner().invoke(app, [*words, "--json"])
    assert asked.exit_code == 0, asked.output
    return json.loads(asked.stdout, parse_constant=pytest.fail)


def test_status_is_the_study_now(url: str) -> None:
    text = run("status", "s", "--storage", url)
    assert "0.9000  trial 0, step 5" in text and "slots 2/2" in text
    found = read("status", "s", "--storage", url)
    assert (found["best_value"], found["slots_used"]) == (0.9, 2)
    assert found["rows"][0]["value"] is None, "JSON knows no NaN"


def test_a_finished_study_says_what_it_has_found_and_how_to_load_it(
    url: str, tmp_path: Path
) -> None:
    assert read("status", "s", "--storage", url)["outcome"] is None
    study = optuna.load_study(study_name="s", storage=url)
    end_within(table_of(study)[0], 0.0)
    text = run("status", "s", "--storage", url)
    assert "load the model  optuna-deadline load-best s --to best-model" in text
    assert "parameters  {'lr': 0." in text and "best value over " in text
    found = read("status", "s", "--storage", url)["outcome"]
    assert found["over"] and found["best"]["value"] == 0.9 and found["checkpoint"]
    assert [value for _, value in found["improvements"]] == [0.5, 0.75, 1 - 0.5 / 3, 0.875, 0.9]

    page = tmp_path / "page.html"
    assert f"s is in {page}" in run("report", "s", "--storage", url, "-o", str(page))
    html = page.read_text()
    for words in ("<h1>s</h1>", "0.9 (trial 0, step 5)", "load-best s --to best-model", "<svg "):
        assert words in html
    assert not re.search(r'(src|href)="', html), "the page needs no other file"
    (tmp_path / "best.ckpt").write_text("damaged")
    run("report", "s", "--storage", url, "-o", str(page))
    assert "No checkpoint was saved" in page.read_text()
    assert "name another file with -o" in run(
        "report", "s", "--storage", url, "-o", str(tmp_path / "no" / "page.html"), code=2
    )


def test_why_a_trial_has_one_slot_only_is_said_by_status_top_and_doctor(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = optuna.load_study(study_name="s", storage=url)
    table = AllocationTable(open_table(study), "lab", study._study_id)
    assert {f["name"]: f for f in read("doctor", "--storage", url)}["slots"]["state"] == "good"
    reason = "SyncBatchNorm works on GPUs only: leave sync_batchnorm=True out on CPU slots."
    grant = Grant(0, 0, 1, ((1, 1), (2, 1)), ("gpu:0", "gpu:1"))
    table.limit_slots("me", grant, 1, reason)
    words = f"trial 0 trains on one slot only: {reason}"
    assert words in run("status", "s", "--storage", url)
    assert read("status", "s", "--storage", url)["limits"] == [words]
    found = {f["name"]: f for f in read("doctor", "--storage", url)}["slots"]
    assert found["state"] == "note"
    assert found["words"] == f"trial 0 of s trains on one slot only: {reason}"
    term = table.elect_planner("me")
    assert term is not None
    table.settle("me", term)
    assert words in run("top", "s", "--storage", url)


def test_top_ends_with_the_study(url: str) -> None:
    study = optuna.load_study(study_name="s", storage=url)
    table = AllocationTable(open_table(study), "lab", study._study_id)
    term = table.elect_planner("me")
    assert term is not None
    for mode, slots, why in (("pause", 0, "others go first"), ("run", 1, "early"), ("run", 2, "")):
        table.write_plan("me", term, [Assignment(0, mode, "me", slots, why)])
    table.settle("me", term)
    output = run("top", "s", "--storage", url)
    assert "best 0.9000" in output
    for words in (
        "trial 0 starts on 2 slots: it is free", "trial 0 pauses at step 6: rank 1 of 1",
        "trial 0 resumes on 1 slot at step 6: early", "trial 0 goes from 1 to 2 slots at step 6",
    ):  # fmt: skip
        assert words in output


def test_the_gate_is_shown_as_it_stands(url: str) -> None:
    study = optuna.load_study(study_name="s", storage=url)
    table = AllocationTable(open_table(study), "lab", study._study_id)
    term = table.elect_planner("me")
    assert term is not None
    assert "gate open" in run("status", "s", "--storage", url)
    table.set_gate("me", term, False)
    assert "gate closed" in run("status", "s", "--storage", url)
    run("set", "s", "--storage", url, "--deadline", "2h")
    assert "gate open" in run("status", "s", "--storage", url)
    assert end_within(table, -1)
    assert "gate closed" in run("status", "s", "--storage", url)


def test_the_gate_of_a_study_that_ended_before_its_deadline_is_closed(url: str) -> None:
    study = optuna.load_study(study_name="s", storage=url)
    table = AllocationTable(open_table(study), "lab", study._study_id)
    term = table.elect_planner("me")
    assert term is not None
    table.settle("me", term)
    assert "gate closed" in run("status", "s", "--storage", url)


def test_a_live_view_follows_a_deadline_that_moves(url: str) -> None:
    study = optuna.load_study(study_name="s", storage=url)
    watcher = StudyWatcher(*table_of(study))
    first = watcher.view()
    run("stop", "s", "--storage", url, "--within", "60s")
    assert watcher.view().time_left <= 60 < first.time_left


def test_top_ends_where_the_deadline_has_passed_and_no_worker_is_left(url: str) -> None:
    study = optuna.load_study(study_name="s", storage=url)
    AllocationTable(open_table(study), "lab", study._study_id).leave("me")
    run("stop", "s", "--storage", url, "--within", "0.01s")
    assert "s has no worker that could end it" in run("top", "s", "--storage", url)


def test_a_kind_of_event_that_has_not_come_is_told_with_those_that_have(url: str) -> None:
    asked = CliRunner().invoke(
        app, ["status", "s", "--events", "--storage", url, "--kind", "bogus"]
    )
    assert asked.exit_code == 0 and asked.stdout == ""
    assert "s has no events of that kind (it has: acquire, " in asked.stderr


def test_events_are_told_oldest_first_and_chosen(url: str) -> None:
    lines = run("status", "s", "--events", "--storage", url).splitlines()
    assert lines[0].endswith("a worker joins s on node7")
    assert lines[-1].endswith("trial 0 of s starts on 2 slots")
    assert [line.split("  ")[1] for line in lines if "planned" in line] == [
        "planned for trial 0 of s: starts: it is free"
    ]
    assert len(run("status", "s", "--events", "--storage", url, "--last", "1").splitlines()) == 1
    assert run("status", "s", "--events", "--storage", url, "--trial", "7") == ""
    found = read("status", "s", "--events", "--storage", url, "--kind", "acquire")
    assert [event["slot"] for event in found] == [1, 2]


def test_the_forecast_is_said_with_its_band_and_with_more_time(url: str) -> None:
    text = run("status", "s", "--forecast", "--storage", url)
    assert "best 0.9 now, " in text and "deadline in 1 h" in text and "trial 0 on 2 slots" in text
    assert "with 2 slot-hours used by then" in text
    found = read("status", "s", "--forecast", "--storage", url)
    told = found["forecast"]
    assert told["best"] <= told["low"] <= told["expected"] <= told["high"]
    assert found["what_if"] is None and told["spent"] is None


def test_what_if_is_simulated_side_by_side(url: str) -> None:
    more = ("--later", "1h", "--gpus", "+4")
    text = run("status", "s", "--forecast", "--storage", url, *more)
    assert "as it is" in text and "1 h later, 4 slots more" in text and "simulated end" in text
    found = read("status", "s", "--forecast", "--storage", url, *more)["what_if"]
    assert found["change"] == {"seconds": 3600, "slots": 4, "money": 0}
    assert found["changed"]["slot_hours"] > found["as_it_is"]["slot_hours"]
    output = run("status", "s", "--forecast", "--storage", url, "--budget", "+20usd", code=2)
    assert "has no budget" in output
    assert "as in +4 or -2" in run(
        "status", "s", "--forecast", "--storage", url, "--gpus", "many", code=2
    )
    assert "needs a duration" in run(
        "status", "s", "--forecast", "--storage", url, "--later", "2030-01-01T00:00Z", code=2
    )


def test_the_best_model_is_found_checked_and_copied(url: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.ckpt"
    text = run("load-best", "s", "--storage", url, "--to", str(copy))
    assert copy.read_text() == "weights" and f"open(\"{copy}\", 'rb').read()" in text
    found = read("load-best", "s", "--storage", url)
    assert (found["trial"], found["step"], found["value"]) == (0, 5, 0.9)
    assert set(found["params"]) == {"lr"}
    (tmp_path / "best.ckpt").write_text("wEights")  # as long, but another one
    damaged = read("load-best", "s", "--storage", url)
    assert damaged["checkpoint"] is None
    gone = ("load-best", "s", "--storage", url, "--to", str(tmp_path / "no" / "copy"))
    assert "saved no checkpoint" in run(*gone, code=2)


def test_the_best_model_is_copied_into_a_folder_under_its_name(url: str, tmp_path: Path) -> None:
    into = tmp_path / "models"
    into.mkdir()
    text = run("load-best", "s", "--storage", url, "--to", str(into))
    assert (into / "best.ckpt").read_text() == "weights" and str(into / "best.ckpt") in text
    (tmp_path / "other" / "best.ckpt").mkdir(parents=True)
    output = run("load-best", "s", "--storage", url, "--to", str(tmp_path / "other"), code=2)
    assert "cannot be copied to" in output and "Is a directory" in output


def test_of_a_plain_study_the_best_report_is_told_and_that_no_checkpoint_is_kept(
    sqlite_url: str,
) -> None:
    study = optuna.create_study(study_name="p", storage=sqlite_url, pruner=DeadlinePruner("1h"))

    def objective(trial: optuna.Trial) -> float:
        value = trial.suggest_float("x", 1, 2)
        trial.report(value, 1)
        trial.should_prune()
        return value

    asked = ("load-best", "p", "--storage", sqlite_url)
    agreement.fix(open_table(study), study, "1h")
    assert "No trial of p has reported a value, so try again later" in run(*asked, code=2)
    assert "deleted 0 files (0 bytes); no trial has saved a checkpoint" in run("clean", *asked[1:])
    study.optimize(objective, n_trials=3)
    assert read(*asked) == {
        "trial": study.best_trial.number,
        "value": study.best_value,
        "step": 1,
        "checkpoint": None,
        "params": study.best_params,
        "feasible": True,
    }
    assert "study.optimize trained trial" in run(*asked)
    assert "keeps no checkpoint" in run(*asked, "--to", "best.ckpt", code=2)


def test_each_extension_moves_the_deadline(url: str) -> None:
    left = [read("status", "s", "--storage", url)["time_left"]]
    for _ in range(2):
        run("set", "s", "--storage", url, "--deadline", "3h")
        left.append(read("status", "s", "--storage", url)["deadline"])
    assert left[2] > left[1]


def test_an_extension_says_what_money_is_left_for_it(sqlite_url: str) -> None:
    study = optuna.create_study(study_name="s", storage=sqlite_url)
    terms = agree(study, "1h", Given(budget=make_budget(20, 3600.0)))
    clock = [terms.started]
    table = AllocationTable(open_table(study), "s", terms.study_id, now=lambda: clock[0])
    extend = ("set", "s", "--storage", sqlite_url, "--deadline")
    assert run(*extend, "2h").endswith("). 20 of 20 usd are left.\n")
    table.register("me", "host", 1, [], 1)
    term = table.elect_planner("me")
    assert term is not None
    for slots, seconds in ((1, 20), (0, 0)):
        table.resize_pool("me", term, slots, terms.deadline)
        clock[0] += seconds
    output = run(*extend, "3h")
    assert output.endswith(" Its budget of 20 usd is spent, and pays for no slot until then.\n")


def test_a_deadline_is_moved_later_only(url: str) -> None:
    assert "deadline 2 h (until " in run("set", "s", "--storage", url, "--deadline", "2h")
    output = run("set", "s", "--storage", url, "--deadline", "1h", code=2)
    assert "moves it later only" in output


def test_a_study_is_ended_earlier_only_and_once(url: str) -> None:
    assert run("stop", "s", "--storage", url, "--within", "30s").startswith("s ends at ")
    run("stop", "s", "--storage", url, "--within", "2h")
    assert 0 < read("status", "s", "--storage", url)["time_left"] <= 30
    study = optuna.load_study(study_name="s", storage=url)
    table = AllocationTable(open_table(study), "lab", study._study_id)
    term = table.elect_planner("me")
    assert term is not None
    table.settle("me", term)
    assert "has ended already" in run("stop", "s", "--storage", url, code=2)
    optuna.create_study(study_name="plain", storage=url)
    assert "has no deadline" in run("stop", "plain", "--storage", url, code=2)


def test_a_study_without_a_deadline_gets_one_sentence(url: str) -> None:
    optuna.create_study(study_name="plain", storage=url)
    views = (["status"], ["top"], ["load-best"], *(["status", f"--{view}"] for view in _VIEWS))
    for words in views:
        assert "has no deadline" in run(*words, "plain", "--storage", url, code=2)
        assert "There is no study 'x'" in run(*words, "x", "--storage", url, code=2)


def test_a_status_has_one_view(url: str) -> None:
    both = run("status", "s", "--pool", "--later", "1h", "--storage", url, code=2)
    assert "--forecast and --pool are alternatives: give one of them" in both
    assert "Name a study, as in" in run("status", "--events", "--storage", url, code=2)


def test_the_doctor_says_what_is_bad_and_what_to_do(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = {f["name"]: f for f in read("doctor", "--storage", url)}
    assert {f["state"] for f in findings.values()} <= {"good", "note"}
    assert {"versions", "GPUs", "disk", "database", "latency", "clocks"} <= findings.keys()
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage(1e9))
    assert "bad   disk: 1.0 GB free" in run("doctor", code=1)
    output = run("doctor", "--checkpoints", f"{__file__}/folder", code=1)
    assert "bad   disk: No checkpoint can be written to" in output


@pytest.mark.parametrize(("seconds", "late"), [(0.0003, None), (0.005, None), (0.15, "12.6 s")])
def test_doctor_and_status_warn_of_more_reports_than_a_round_trip_allows(
    url: str, monkeypatch: pytest.MonkeyPatch, seconds: float, late: str | None
) -> None:
    """Two workers with six trials each, which report 1 / s together."""
    study = optuna.load_study(study_name="s", storage=url)
    database = open_table(study)
    with database.engine.begin() as connection:
        connection.execute(sa.delete(schema.report))
        now = float(connection.execute(sa.select(database_now())).scalar_one())
        row = connection.execute(sa.select(schema.worker)).mappings().one()
        connection.execute(sa.insert(schema.worker).values({**row, "id": "other"}))
        for age in range(90):
            connection.execute(
                sa.insert(schema.report).values(
                    study_id=study._study_id, number=age % 12, step=age, value=0.5, fence=1,
                    slots=1, trained=1.0, at=now - age / 4,
                )
            )  # fmt: skip
    monkeypatch.setattr(databases, "round_trip", lambda connection: seconds)
    findings = {f["name"]: f for f in read("doctor", "--storage", url)}
    warning = read("status", "s", "--storage", url)["warning"]
    output = run("status", "s", "--storage", url)
    if late is None:
        assert findings["latency"]["state"] == "good" and warning is None
        assert "round trip" not in output
    else:
        assert findings["latency"] == {"name": "latency", "state": "note", "words": warning}
        assert f"plans see them {late} late" in warning and "report 2 times a second" in warning
        assert "nearer" in output


def test_the_doctor_tells_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(url: str) -> None:
        raise sa.exc.OperationalError("SELECT 1", {}, Exception("connection refused"))

    monkeypatch.setattr(doctor, "connect", away)
    monkeypatch.setattr(doctor, "open_storage", lambda url: None)
    output = run("doctor", "--storage", "postgresql://me:secret@host/db", code=1)
    assert "does not answer (connection refused)" in output and "secret" not in output
