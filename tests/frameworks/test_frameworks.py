"""A training of a framework that is paused between two rounds is the same training."""

from __future__ import annotations

import os
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import objectives_of_frameworks as objectives
import optuna
import pytest
from left_segments import Ear, FakeSegment, FakeTrial, train_in_segments
from objectives_of_frameworks import ROUNDS, TRAININGS
from optuna.trial import TrialState

import optuna_deadline
from optuna_deadline import DeadlinePruner, DeadlineSampler
from optuna_deadline.directives import Directive, Kind
from optuna_deadline.errors import DeadlineError
from optuna_deadline.rank.messages import Limited
from optuna_deadline.rounds import Rounds
from optuna_deadline.segments import SegmentEnd

BOOSTERS = [name for name in TRAININGS if name != "keras"]
FILES = {
    "xgboost": "model.ubj", "xgboost_sklearn": "model.ubj", "lightgbm": "model.txt",
    "lightgbm_sklearn": "model.txt", "catboost": "model.cbm", "keras": "model.weights.h5",
}  # fmt: skip


def kinds(*names: str) -> Any:
    """The frameworks; Keras takes seconds to start."""
    marks = {"keras": pytest.mark.slow}
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=marks.get(name, ())) for name in names or TRAININGS]
    )


@pytest.fixture(autouse=True)
def _files_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@kinds()
@pytest.mark.parametrize("leave_at", [1, 5])
def test_a_training_that_is_left_after_any_round_gives_the_same_model_and_reports(
    tmp_path: Path, name: str, leave_at: int
) -> None:
    (whole, value), reports, _ = train_in_segments(tmp_path / "a", TRAININGS[name], 10**9)
    (left, other), reported, segments = train_in_segments(
        tmp_path / "b", TRAININGS[name], leave_at
    )
    assert segments == ROUNDS // leave_at + (ROUNDS % leave_at > 0)
    assert np.array_equal(whole, left)
    assert other == value and reported == reports
    assert list(reports) == list(range(1, ROUNDS + 1))


@pytest.mark.parametrize(
    "params",
    [
        {"boosting": "dart"},
        {"data_sample_strategy": "goss"},
        {"boosting_type": "rf", "bagging_freq": 1, "bagging_fraction": 0.7},
    ],
    ids=str,
)
def test_what_lightgbm_cannot_continue_keeps_its_slot(
    tmp_path: Path, params: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    segment, trial = start(tmp_path, leave_at=5)
    kept: list[bool] = []
    segment.keep_slots = lambda: kept.append(True)  # type: ignore[method-assign]
    objectives.lightgbm(trial, params)
    assert len(trial.reports) == ROUNDS and kept == [True]
    assert [message for message in caplog.messages if "cannot continue" in message]


@pytest.mark.slow
def test_a_model_of_keras_may_freeze_layers_and_validate_seldom(tmp_path: Path) -> None:
    def train(trial: Any) -> Any:
        return objectives.keras(trial, freeze_at=3, validation_freq=2)

    (whole, _), reports, _ = train_in_segments(tmp_path / "a", train, 10**9)
    (left, _), reported, segments = train_in_segments(tmp_path / "b", train, 5)
    assert segments > 1 and np.array_equal(whole, left)
    assert reported == reports and list(reports) == list(range(2, ROUNDS + 1, 2))


@pytest.mark.slow
def test_what_layers_and_other_callbacks_of_keras_keep_goes_on(tmp_path: Path) -> None:
    def others(keras: Any) -> list[Any]:
        class Slower(keras.callbacks.Callback):  # type: ignore[misc]
            epochs = 0

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                self.epochs += 1
                self.model.optimizer.learning_rate = 0.1 / self.epochs
                self.model.layers[1].rate *= 0.9

        early = {"monitor": "val_loss", "min_delta": 0.05, "patience": 4}
        found = keras.callbacks.EarlyStopping(**early, restore_best_weights=True)
        slower = keras.callbacks.ReduceLROnPlateau(patience=2, min_delta=0.05)
        return [Slower(), slower, found]

    def train(trial: Any) -> Any:
        return objectives.keras(trial, others=others)

    (whole, _), reports, _ = train_in_segments(tmp_path / "a", train, 10**9)
    (left, _), reported, segments = train_in_segments(tmp_path / "b", train, 1)
    assert segments > 3 and len(reports) < ROUNDS, "it is stopped early"
    assert reported == reports and np.array_equal(whole, left)


def in_folds(name: str, trial: Any, **options: Any) -> tuple[list[Any], list[float]]:
    found = [TRAININGS[name](trial, fit=f"fold-{fold}", **options) for fold in range(3)]
    return [one.tolist() for one, _ in found], [value for _, value in found]


@kinds()
@pytest.mark.parametrize("leave_at", [7, ROUNDS])
def test_folds_that_are_left_anywhere_are_the_same(
    tmp_path: Path, name: str, leave_at: int
) -> None:
    def train(trial: Any) -> Any:
        return in_folds(name, trial)

    whole, reports, _ = train_in_segments(tmp_path / "a", train, 10**9)
    left, reported, segments = train_in_segments(tmp_path / "b", train, leave_at)
    assert segments > 1 and left == whole and reported == reports
    assert list(reports) == list(range(1, 3 * ROUNDS + 1))


@kinds()
def test_a_second_training_without_a_name_is_refused(tmp_path: Path, name: str) -> None:
    _, trial = start(tmp_path)
    TRAININGS[name](trial)
    with pytest.raises(DeadlineError, match=r'a second fit.*fit="fold-1"'):
        TRAININGS[name](trial)


@kinds("xgboost", "lightgbm", "catboost")
def test_one_callback_does_not_watch_two_trainings(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, trial = start(tmp_path)
    module = __import__(f"optuna_deadline_{name}")
    made = cache(module.DeadlineCallback)
    monkeypatch.setattr(module, "DeadlineCallback", made)
    TRAININGS[name](trial)
    with pytest.raises(DeadlineError, match="has reported another training"):
        TRAININGS[name](trial)


@kinds()
def test_a_training_with_more_rounds_than_the_callback_knows_is_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, trial = start(tmp_path)
    module = __import__(f"optuna_deadline_{name.removesuffix('_sklearn')}")
    given, unit = module.DeadlineCallback, "epochs" if name == "keras" else "rounds"

    class Fewer(given):  # type: ignore[misc]
        rounds_left = ROUNDS

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, unit: 5})

    monkeypatch.setattr(module, "DeadlineCallback", Fewer)
    with pytest.raises(DeadlineError, match="goes on after round 5, the last one that"):
        TRAININGS[name](trial)
    assert list(trial.reports) == [1, 2, 3, 4, 5]


@kinds()
def test_a_training_that_does_not_continue_its_model_is_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment, trial = start(tmp_path, 5)
    with pytest.raises(SegmentEnd):
        TRAININGS[name](trial)
    module = __import__(f"optuna_deadline_{name.removesuffix('_sklearn')}")
    forgotten: dict[str, tuple[str, Any]] = {
        "catboost": ("fit_options", lambda self: {}), "keras": ("initial_epoch", 0)
    }  # fmt: skip
    monkeypatch.setattr(module.DeadlineCallback, *forgotten.get(name, ("model", None)))
    (folder := tmp_path / "again").mkdir()
    again = FakeTrial(FakeSegment(folder, 2, segment.saved, 10**9), {})
    with pytest.raises(DeadlineError, match="resumes after round 5, and its training begins anew"):
        TRAININGS[name](again)


def transfer(trial: Any, one_callback: bool = False) -> tuple[np.ndarray, list[float]]:
    """Trains the last layer of a model of Keras, and then all."""
    import keras
    from optuna_deadline_keras import DeadlineCallback

    x, y, xv, yv = objectives.data()
    keras.utils.set_random_seed(5)
    model = keras.Sequential([
        keras.layers.Input((64,)), keras.layers.Dense(8, activation="relu"),
        keras.layers.Dropout(0.3), keras.layers.Dense(1, activation="sigmoid"),
    ])  # fmt: skip
    values: list[float] = []
    deadline = None
    for phase, trains in enumerate((False, True)):
        model.layers[0].trainable = trains
        model.compile("adam", "binary_crossentropy")
        if deadline is None or not one_callback:
            deadline = DeadlineCallback(trial, "val_loss", epochs=4, fit=f"phase-{phase}")
        model.fit(
            x / 16, y, epochs=4, initial_epoch=deadline.initial_epoch, verbose=0,
            validation_data=(xv / 16, yv), callbacks=[deadline],
        )  # fmt: skip
        values.append(deadline.result())
    return model.predict(xv / 16, verbose=0), values


@pytest.mark.slow
def test_a_model_of_keras_is_trained_in_two_phases(tmp_path: Path) -> None:
    (whole, values), reports, _ = train_in_segments(tmp_path / "a", transfer, 10**9)
    (left, found), reported, segments = train_in_segments(tmp_path / "b", transfer, 3)
    assert segments > 2 and np.array_equal(whole, left)
    assert found == values and reported == reports and list(reports) == list(range(1, 9))
    _, trial = start(tmp_path)
    with pytest.raises(DeadlineError, match="has reported another training: make one for each"):
        transfer(trial, one_callback=True)


def start(folder: Path, leave_at: int = 10**9) -> tuple[FakeSegment, FakeTrial]:
    (own := folder / f"segment-{leave_at}").mkdir()
    segment = FakeSegment(own, 1, None, leave_at)
    return segment, FakeTrial(segment, {})


@kinds()
def test_a_checkpoint_holds_the_model_in_the_frameworks_own_form(
    tmp_path: Path, name: str
) -> None:
    segment, trial = start(tmp_path, 3)
    with pytest.raises(SegmentEnd):
        TRAININGS[name](trial)
    assert segment.saved is not None and segment.horizons == [ROUNDS]
    with zipfile.ZipFile(segment.saved) as archive:
        assert f"checkpoint/{FILES[name]}" in archive.namelist()
    assert sorted(trial.reports) == [1, 2, 3]


@kinds(*BOOSTERS)
def test_every_third_round_and_the_last_are_reported(tmp_path: Path, name: str) -> None:
    _, trial = start(tmp_path)
    TRAININGS[name](trial, report_every=5)
    assert sorted(trial.reports) == [5, 10, 12]


@kinds()
def test_plain_optuna_ends_by_the_deadline_and_prunes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objectives, "ROUNDS", 10**6)
    left = "10s" if name == "keras" else "2s"  # which needs seconds to its first epoch
    study = optuna.create_study(pruner=DeadlinePruner(left), sampler=DeadlineSampler())
    study.optimize(lambda trial: TRAININGS[name](trial)[1])
    complete = [one for one in study.trials if one.state is TrialState.COMPLETE]
    assert complete and optuna_deadline.time_left(study) > -1.5

    pruned = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(upper=0.0))
    pruned.optimize(lambda trial: TRAININGS[name](trial)[1], n_trials=1)
    assert pruned.trials[0].state is TrialState.PRUNED
    assert list(pruned.trials[0].intermediate_values) == [1]


@kinds("xgboost", "lightgbm", "catboost")
def test_another_metric_is_named_with_those_that_are_there(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, trial = start(tmp_path)
    module = __import__(f"optuna_deadline_{name}")
    given = module.DeadlineCallback
    monkeypatch.setattr(
        module, "DeadlineCallback", lambda trial, _, **options: given(trial, "auc", **options)
    )
    with pytest.raises(DeadlineError, match=r"no metric 'auc': it has .*-.*[lL]og_?loss"):
        TRAININGS[name](trial)


@pytest.mark.parametrize("rounds", [0, 2.5, True])
def test_rounds_are_a_whole_number(rounds: Any) -> None:
    with pytest.raises(DeadlineError, match="rounds must be a whole number from 1"):
        Rounds(FakeTrial(None, {}), rounds)


def test_a_training_that_reported_nothing_has_no_result() -> None:
    with pytest.raises(DeadlineError, match=r"pass callbacks=\[deadline\]"):
        Rounds(FakeTrial(None, {}), 3).result(lambda folder: None)


class Stopped(FakeSegment):
    """A segment that the deadline ends."""

    def newest(self) -> Directive:
        found = super().newest()
        return Directive(Kind.STOP, "the deadline") if found.leave else found


@kinds(*BOOSTERS)
def test_the_deadline_ends_a_trial_with_its_best_model_saved(tmp_path: Path, name: str) -> None:
    segment = Stopped(tmp_path, 1, None, 7)
    trial = FakeTrial(segment, {})
    with pytest.raises(SegmentEnd):
        TRAININGS[name](trial)
    assert sorted(trial.reports) == list(range(1, 8)) and segment.saved is not None


def test_a_safety_checkpoint_is_saved_when_it_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr("optuna_deadline.rounds.time.monotonic", lambda: float(next(clock)))
    _, trial = start(tmp_path)
    rounds = Rounds(trial, 100, save_every=20.0)
    saved = []
    for number in range(1, 51):  # no value is better than the first
        move = rounds.after(number, lambda: float(rounds._round))
        rounds.obey(move, lambda folder: saved.append(rounds._round))
    assert len(saved) == 3 and saved[0] == 1, saved


def test_catboost_saves_snapshots_while_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from optuna_deadline_catboost import DeadlineCallback

    segment, trial = start(tmp_path)
    deadline = DeadlineCallback(trial, "validation-Logloss", rounds=9)
    snapshot = Path(deadline.fit_options()["snapshot_file"])

    class Info:
        def __init__(self, iteration: int) -> None:
            self.iteration = iteration
            self.metrics = {"validation": {"Logloss": [1.0 / iteration]}}

    assert deadline.after_iteration(Info(1)) and segment.saved is None
    snapshot.write_text("a snapshot")
    assert deadline.after_iteration(Info(2)) and segment.saved is not None
    with zipfile.ZipFile(segment.saved) as archive:
        assert archive.read("checkpoint/training.snapshot") == b"a snapshot"
    segment.saved = None
    assert deadline.after_iteration(Info(3)) and segment.saved is None


@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_a_cross_validation_is_not_paused(tmp_path: Path, name: str) -> None:
    segment, trial = start(tmp_path, 2)
    x, y, _, _ = objectives.data()
    if name == "xgboost":
        import xgboost
        from optuna_deadline_xgboost import DeadlineCallback

        deadline: Any = DeadlineCallback(trial, "test-rmse", rounds=4)
        with pytest.raises(DeadlineError, match=r"xgboost\.cv trains several models at once"):
            xgboost.cv({"nthread": 1}, xgboost.DMatrix(x, y), 4, callbacks=[deadline])
    else:
        import lightgbm
        import optuna_deadline_lightgbm

        deadline = optuna_deadline_lightgbm.DeadlineCallback(trial, "valid-l2", rounds=4)
        params = {"objective": "l2", "verbose": -1, "num_threads": 1}
        with pytest.raises(DeadlineError, match=r"lightgbm\.cv trains several models at once"):
            lightgbm.cv(params, lightgbm.Dataset(x, y), 4, stratified=False, callbacks=[deadline])
    assert segment.saved is None


def test_a_trial_on_several_slots_leaves_for_one(tmp_path: Path) -> None:
    from optuna_deadline.rank.trial import RankSegment

    ear = Ear()
    segment = RankSegment(
        ear, rank=0, world_size=2, fence=1, folder=tmp_path, resume=None, direction="minimize"
    )  # type: ignore[arg-type]
    ear.newest = Directive(Kind.KEEP, "")  # type: ignore[attr-defined]
    with pytest.raises(SegmentEnd):
        Rounds(FakeTrial(segment, {}), 3)
    assert isinstance(ear.heard[0], Limited) and ear.heard[0].slots == 1


@pytest.mark.slow
@kinds("xgboost", "lightgbm", "catboost")
def test_a_worker_trains_and_keeps_the_best_model(tmp_path: Path, name: str) -> None:
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/s.db")
    result = optuna_deadline.run(
        study, f"{objectives.__file__}:{name}_under_worker", cpus=2, deadline="60s", n_trials=6,
        checkpoints=tmp_path,
    )  # fmt: skip
    assert result.settled and result.checkpoint_ok and result.checkpoint is not None
    failed = [one for one in study.trials if one.state is TrialState.FAIL]
    assert failed == [] and len(study.trials) == 6
    with zipfile.ZipFile(result.checkpoint) as archive:
        assert f"checkpoint/{FILES[name]}" in archive.namelist()
    assert result.value == min(study.trials[result.trial_number].intermediate_values.values())
    assert not [one for one in tmp_path.rglob("*.tmp") if os.path.isdir(one)]
