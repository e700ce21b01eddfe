"""A study's first trial is checked before it trains."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

pytest.importorskip("torch")

from optuna_deadline_torch import first_trial

import optuna_deadline
from optuna_deadline.allocation.database.engine import autocommit
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.database.schema import trial
from optuna_deadline.cli import app
from optuna_deadline.segments import WholeTrial

pytestmark = pytest.mark.nightly_but(r"differs_is_found")

_PLACE = Path(__file__).with_name("checked_objectives.py")


@pytest.mark.parametrize(
    "other", [{"elastic": False}, {"rank": 1}, {"resume": Path("x")}, {"checked": True}]
)
def test_only_the_first_segment_of_the_first_trial_is_checked(
    other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"elastic": True, "rank": 0, "resume": None, "world_size": 1}
    begun: list[Any] = []

    def begin(*args: Any, **kwargs: Any) -> None:
        begun.append(args)
        raise first_trial.Stopped

    monkeypatch.setattr(first_trial, "loaded", lambda: object())
    monkeypatch.setattr(first_trial, "TrainingRuns", begin)
    first = SimpleNamespace(number=0)
    first_trial.check_first(first, SimpleNamespace(**{**facts, **other}))  # type: ignore[arg-type]
    first_trial.check_first(SimpleNamespace(number=1), SimpleNamespace(**facts))  # type: ignore[arg-type]
    first_trial.check_first(first, WholeTrial())
    assert begun == []
    first_trial.check_first(first, SimpleNamespace(**facts))  # type: ignore[arg-type]
    assert len(begun) == 1


def _run(place: str, folder: Path) -> optuna.Study:
    study = optuna.create_study(
        study_name="s", direction="minimize", storage=f"sqlite:///{folder}/study.db"
    )
    optuna_deadline.run(
        study,
        f"{_PLACE.parent}/{place}",
        cpus=2,
        deadline="60s",
        checkpoints=folder / "checkpoints",
        policy="fifo:n_trials=1",
    )
    return study


@pytest.mark.slow
def test_an_exact_check_of_a_fit_is_kept_and_can_be_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lightning")
    study = _run("checked_fits.py:checked", tmp_path)
    found = study.trials[0].user_attrs["optuna_deadline:check"]
    assert len(found) == 5 and all(words.startswith("exact") for words in found.values()), found
    assert "Check of the first trial: 5 of 5 ways to train are exact." in capfd.readouterr().err
    outcome = CliRunner().invoke(
        app, ["status", "s", "--storage", f"sqlite:///{tmp_path}/study.db"]
    )
    assert "check of the first trial: 5 of 5 ways to train are exact" in outcome.output


@pytest.mark.slow
def test_a_fit_that_differs_is_found_and_stays_on_one_slot(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    study = _run("checked_fits.py:checked_forgetful", tmp_path)
    found = study.trials[0].user_attrs["optuna_deadline:check"]
    assert found["undisturbed, twice"] == "exact"
    assert sum(words.startswith("differs by") for words in found.values()) == 4, found
    with autocommit(open_table(study).engine) as connection:
        assert connection.execute(sa.select(trial.c.slot_limit)).scalars().all() == [1]


@pytest.mark.slow
def test_the_first_trial_keeps_what_its_check_found(tmp_path: Path) -> None:
    study = _run("checked_objectives.py:checked", tmp_path)
    found = study.trials[0].user_attrs["optuna_deadline:check"]
    assert found["undisturbed, twice"] == "exact"
    assert any("cannot be distributed to 2 slots" in words for words in found.values())
