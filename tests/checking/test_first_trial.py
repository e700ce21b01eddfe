"""A study's first trial is checked before it trains."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest

pytest.importorskip("torch")

from optuna_deadline_torch import first_trial

import optuna_deadline
from optuna_deadline.segments import WholeTrial

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
    monkeypatch.setattr(first_trial, "Runs", begin)
    first = SimpleNamespace(number=0)
    first_trial.check_first(first, SimpleNamespace(**{**facts, **other}))  # type: ignore[arg-type]
    first_trial.check_first(SimpleNamespace(number=1), SimpleNamespace(**facts))  # type: ignore[arg-type]
    first_trial.check_first(first, WholeTrial())
    assert begun == []
    first_trial.check_first(first, SimpleNamespace(**facts))  # type: ignore[arg-type]
    assert len(begun) == 1


@pytest.mark.slow
def test_the_first_trial_keeps_what_its_check_found(tmp_path: Path) -> None:
    study = optuna.create_study(direction="minimize", storage=f"sqlite:///{tmp_path}/study.db")
    optuna_deadline.run(
        study, f"{_PLACE}:checked", cpus=2, deadline="60s", checkpoints=tmp_path / "checkpoints",
        policy="fifo", policy_parameters={"most_trials": 1},
    )  # fmt: skip
    found = study.trials[0].user_attrs["optuna_deadline:check"]
    assert found["undisturbed, twice"] == "exact"
    assert any("cannot be dealt to 2 slots" in words for words in found.values())
