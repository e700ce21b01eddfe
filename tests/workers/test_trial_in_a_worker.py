"""A trial in a worker answers as Optuna's does, or says in one sentence what to use."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import optuna
import pytest
from optuna.artifacts import FileSystemArtifactStore, get_all_artifact_meta, upload_artifact
from optuna.trial import TrialState

from optuna_deadline.directives import KEEP
from optuna_deadline.planning.optuna_storage import may_open
from optuna_deadline.rank import process
from optuna_deadline.rank.encoding import as_data, packed, unpacked
from optuna_deadline.rank.link import Link
from optuna_deadline.rank.messages import Returned
from optuna_deadline.rank.trial import RankSegment, RankTrial
from optuna_deadline.worker import requests


def in_a_worker(trial: optuna.Trial, folder: Path, rank: int = 0) -> RankTrial:
    """The rank's view of a trial, whose questions travel as between two processes."""

    def request(method: str, *args: Any, **kwargs: Any) -> Any:
        asked = unpacked(packed((as_data(args, method), as_data(kwargs, method)), method))
        found = requests.requestable(trial, method)
        assert found is not None, method
        return unpacked(packed(found(*asked[0], **asked[1]), method))

    link: Any = SimpleNamespace(newest=KEEP, send=lambda _: None, request=request)
    segment = RankSegment(
        cast(Link, link), rank=rank, world_size=1, fence=1, folder=folder, resume=None,
        direction="minimize",
    )  # fmt: skip
    return RankTrial(cast(Link, link), segment, trial.number)


@pytest.fixture
def study(sqlite_url: str) -> optuna.Study:
    """A study with every kind of trial."""
    made = optuna.create_study(storage=sqlite_url, direction="maximize")

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        trial.suggest_categorical("c", [None, True, 1.5, "a"])
        trial.report(float("nan") if trial.number == 1 else x, 3)
        trial.set_user_attr("kept", {"list": [1, "two", None]})
        if trial.number == 1:
            raise optuna.TrialPruned
        return x

    made.optimize(objective, n_trials=4)
    made.set_user_attr("team", "blue")
    made.enqueue_trial({"x": 0.5})
    return made


def test_what_an_objective_reads_of_its_study_is_what_optuna_says(
    study: optuna.Study, tmp_path: Path
) -> None:
    own = study.ask()
    seen = in_a_worker(own, tmp_path).study
    for name in (
        "study_name", "direction", "directions", "user_attrs", "metric_names", "best_value",
        "best_params", "best_trial", "best_trials",
    ):  # fmt: skip
        assert getattr(seen, name) == getattr(study, name), name
    assert seen._is_multi_objective() is study._is_multi_objective()
    assert list(map(repr, seen.trials)) == list(map(repr, study.trials)), "NaN too"
    complete = seen.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    assert [trial.number for trial in complete] == [0, 2, 3]
    before = own.study.user_attrs
    seen.set_user_attr("model", "mlp")
    seen.enqueue_trial({"x": 0.25}, user_attrs={"why": "guess"})
    assert study.user_attrs == {**before, "model": "mlp"}
    waiting = study.get_trials(states=(TrialState.WAITING,))
    assert [trial.system_attrs["fixed_params"] for trial in waiting] == [{"x": 0.25}]


@pytest.mark.parametrize("choices", [range(3), {1, 2}, (1, 2), "ab", (n for n in (1, 2))])
def test_choices_may_be_any_iterable(study: optuna.Study, tmp_path: Path, choices: Any) -> None:
    trial = in_a_worker(study.ask(), tmp_path)
    chosen = trial.suggest_categorical("of any", choices)
    distribution: Any = trial.distributions["of any"]
    assert chosen in distribution.choices and len(distribution.choices) in (2, 3)


@pytest.mark.parametrize("returned", [0.5, [0.5], (0.5,), np.float32(0.5)])
def test_one_value_may_be_returned_in_a_list(returned: Any) -> None:
    assert process._run_objective(lambda _: returned, cast(Any, None)) == Returned(0.5)


def test_two_values_fail_a_trial_in_words() -> None:
    ended = process._run_objective(lambda _: (0.5, 0.6), cast(Any, None))
    assert "returned 2 values, and the study has one direction" in cast(Any, ended).line


def test_a_study_of_many_trials_comes_in_parts(
    study: optuna.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_PART", 1)
    seen = in_a_worker(study.ask(), tmp_path).study
    assert [trial.number for trial in seen.trials] == [0, 1, 2, 3, 4]


def test_a_study_without_a_complete_trial_has_no_best_one(tmp_path: Path) -> None:
    seen = in_a_worker(optuna.create_study().ask(), tmp_path).study
    with pytest.raises(ValueError):
        _ = seen.best_value


def test_what_an_objective_reads_of_its_trial_is_what_optuna_says(
    study: optuna.Study, tmp_path: Path
) -> None:
    own = study.ask()
    trial = in_a_worker(own, tmp_path)
    assert trial.suggest_float("x", 0, 1) == 0.5, "it was enqueued"
    trial.set_system_attr("failed_trial", 7)
    for name in ("number", "params", "distributions", "user_attrs", "relative_params"):
        assert getattr(trial, name) == getattr(own, name), name
    assert trial.system_attrs == study.trials[own.number].system_attrs
    callback = getattr(optuna.storages, "RetryHeartbeatStaleTrialCallback", None)  # from 4.9
    callback = callback or optuna.storages.RetryFailedTrialCallback
    assert callback.retried_trial_number(trial) == 7
    assert copy.deepcopy({"trial": trial})["trial"] is trial is copy.copy(trial)
    assert copy.deepcopy(trial.study).study_name == study.study_name


def test_helpers_of_optuna_keep_what_belongs_to_the_trial(
    study: optuna.Study, tmp_path: Path
) -> None:
    trial = in_a_worker(study.ask(), tmp_path)
    (tmp_path / "model.txt").write_text("weights")
    store = FileSystemArtifactStore(str(tmp_path))
    artifact = upload_artifact(
        artifact_store=store, file_path=str(tmp_path / "model.txt"), study_or_trial=trial
    )
    dashboard = pytest.importorskip("optuna_dashboard")
    dashboard.save_note(trial, "A small network.")
    dashboard.save_note(trial, "A larger network.")
    frozen = study.trials[trial.number]
    [kept] = get_all_artifact_meta(frozen, storage=study._storage)
    assert (kept.artifact_id, kept.filename) == (artifact, "model.txt")
    notes = study._storage.get_study_system_attrs(study._study_id).values()
    assert "A larger network." in notes and "A small network." not in notes


def test_what_the_pipe_cannot_give_is_refused_in_one_sentence(
    study: optuna.Study, tmp_path: Path
) -> None:
    trial = in_a_worker(study.ask(), tmp_path)
    assert not hasattr(trial, "no_such_thing")
    with pytest.raises(AttributeError, match=r"no .no_such_thing., since only.*trial.study or"):
        _ = trial.no_such_thing
    for name in ("optimize", "ask", "tell", "sampler", "pruner", "add_trial"):
        with pytest.raises(AttributeError, match=rf"has no '{name}', since only.*load_study"):
            getattr(trial.study, name)
    with pytest.raises(AttributeError, match=r"has no 'get_trial', since only.*load_study"):
        _ = trial.storage.get_trial
    with pytest.raises(ValueError, match="of this trial and of its study alone"):
        trial.storage.set_trial_system_attr(trial._trial_id - 1, "a", 1)
    with pytest.raises(TypeError, match="A trial in a worker stays in its process"):
        pickle.dumps(trial)
    for value in (None, "abc", [1.0]):
        with pytest.raises(TypeError, match=r"The `value` argument is of type '\w+' but"):
            trial.report(value, 1)  # type: ignore[arg-type]
    own = study.ask()
    for method in (
        "study._storage",
        "study.optimize",
        "study.tell",
        "_storage",
        "report",
        "study",
    ):
        assert requests.requestable(own, method) is None


def test_only_the_first_rank_writes(study: optuna.Study, tmp_path: Path) -> None:
    second = in_a_worker(study.ask(), tmp_path, rank=1)
    second.set_system_attr("a", 1)
    second.storage.set_trial_system_attr(second._trial_id, "a", 1)
    second.storage.set_study_system_attr(second.study._study_id, "a", 1)
    second.study.set_user_attr("a", 1)
    second.study.enqueue_trial({"x": 0.75})
    second.study.stop()
    assert second.storage.get_trial_system_attrs(second._trial_id).get("a") is None
    assert second.storage.get_study_system_attrs(second.study._study_id).get("a") is None
    assert "a" not in study.user_attrs
    assert may_open(study) and not study.get_trials(states=(TrialState.WAITING,))
