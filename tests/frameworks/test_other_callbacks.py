"""What other callbacks of a framework count, set and record goes on after a pause."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import objectives_of_frameworks as objectives
import pytest
from left_segments import FakeSegment, FakeTrial, train_in_segments
from objectives_of_frameworks import ROUNDS

from optuna_deadline.errors import DeadlineError


@pytest.fixture(autouse=True)
def _files_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def same_in_segments(
    folder: Path, objective: Callable[[Any], Any], leave_at: int, early: bool
) -> None:
    whole, reports, _ = train_in_segments(folder / "a", objective, 10**9)
    left, reported, segments = train_in_segments(folder / "b", objective, leave_at)
    assert left == whole and reported == reports
    assert segments > 1 and (len(reports) < ROUNDS) is early, len(reports)


# ---- XGBoost


def xgboost(
    trial: Any,
    others: Callable[[], list[Any]] = list,
    base: str | None = None,
    fit: str | None = None,
    **options: Any,
) -> Any:
    import xgboost
    from optuna_deadline_xgboost import DeadlineCallback

    x, y, xv, yv = objectives.data()
    params = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1, "eta": 0.9}
    params |= options.pop("params", {})
    deadline = DeadlineCallback(trial, "valid-logloss", rounds=ROUNDS, fit=fit)
    valid, measured = xgboost.DMatrix(xv, yv), dict[str, Any]()
    booster = xgboost.train(
        params, xgboost.DMatrix(x, y), num_boost_round=deadline.rounds_left,
        evals=[(valid, "valid")], xgb_model=deadline.model or base,
        callbacks=[*others(), deadline],
        evals_result=measured, verbose_eval=False, **options,
    )  # fmt: skip
    best = getattr(booster, "best_iteration", None) if booster.attributes() else None
    found = booster.predict(valid).tolist(), best, measured, booster.num_boosted_rounds()
    return found, deadline.result(booster)


def slower_xgboost() -> list[Any]:
    from xgboost.callback import LearningRateScheduler, TrainingCallback

    class Slower(TrainingCallback):  # type: ignore[misc]
        rounds = 0

        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            self.rounds += 1
            best = min(evals_log["valid"]["logloss"])
            model.set_param({"lambda": 1 + self.rounds * best, "gamma": 0.01 * epoch})
            return False

    return [LearningRateScheduler(lambda number: 0.9 * 0.8**number), Slower()]


COUNTED = {"rounds": 0}


def counted_rate(number: int) -> float:
    COUNTED["rounds"] += 1
    return float(0.9 * 0.8 ** COUNTED["rounds"])


def globally_slower_xgboost() -> list[Any]:
    from xgboost.callback import LearningRateScheduler

    COUNTED["rounds"] = 0
    return [LearningRateScheduler(counted_rate)]


def early_xgboost(save_best: bool) -> list[Any]:
    from xgboost.callback import EarlyStopping

    return [EarlyStopping(rounds=3, min_delta=0.05, save_best=save_best)]


@pytest.mark.parametrize("leave_at", [1, 4])
@pytest.mark.parametrize(
    ("others", "options", "early"),
    [
        (slower_xgboost, {}, False),
        (globally_slower_xgboost, {}, False),
        (partial(early_xgboost, True), {}, True),
        (partial(early_xgboost, False), {}, True),
        (list, {"early_stopping_rounds": 5, "params": {"eta": 2.5}}, True),
    ],
)
def test_xgboost(tmp_path: Path, others: Any, options: Any, early: bool, leave_at: int) -> None:
    same_in_segments(tmp_path, lambda trial: xgboost(trial, others, **options), leave_at, early)


# ---- LightGBM


def lightgbm(
    trial: Any,
    others: Callable[[list[Any]], list[Any]] = lambda _: [],
    base: str | None = None,
    fit: str | None = None,
    **params: Any,
) -> Any:
    import lightgbm
    from optuna_deadline_lightgbm import DeadlineCallback

    x, y, xv, yv = objectives.data()
    deadline = DeadlineCallback(trial, "valid_0-binary_logloss", rounds=ROUNDS, fit=fit)
    given = {"objective": "binary", "num_leaves": 7, "num_threads": 1, "verbose": -1}
    train, seen = lightgbm.Dataset(x, y), list[Any]()
    booster = lightgbm.train(
        given | params, train, num_boost_round=deadline.rounds_left,
        valid_sets=[lightgbm.Dataset(xv, yv, reference=train)],
        init_model=deadline.model or base, callbacks=[*others(seen), deadline],
    )  # fmt: skip
    found = booster.predict(xv).tolist(), booster.best_iteration, seen, booster.num_trees()
    return found, deadline.result(booster)


def recorded_lightgbm(seen: list[Any]) -> list[Any]:
    from lightgbm import record_evaluation, reset_parameter

    worse = 0

    def note(env: Any) -> None:
        nonlocal worse
        worse += env.evaluation_result_list[0][2] > 0.3
        seen.append([env.iteration, env.begin_iteration, worse])

    seen.append({})
    rates = [0.5 * 0.9**number for number in range(ROUNDS)]
    halved = reset_parameter(lambda_l2=lambda number: 1.0 + number)
    return [note, record_evaluation(seen[0]), reset_parameter(learning_rate=rates), halved]


def early_lightgbm(seen: list[Any]) -> list[Any]:
    from lightgbm import early_stopping

    return [early_stopping(3, min_delta=0.05, verbose=False)]


@pytest.mark.parametrize("leave_at", [1, 4])
@pytest.mark.parametrize(
    ("others", "params", "early"),
    [
        (recorded_lightgbm, {}, False),
        (early_lightgbm, {"learning_rate": 0.6}, True),
        (lambda seen: [], {"learning_rate": 1.5, "early_stopping_round": 5}, True),
    ],
)
def test_lightgbm(tmp_path: Path, others: Any, params: Any, early: bool, leave_at: int) -> None:
    same_in_segments(tmp_path, lambda trial: lightgbm(trial, others, **params), leave_at, early)


def test_a_trial_may_begin_with_a_model(tmp_path: Path) -> None:
    import lightgbm as library
    import xgboost as other_library

    x, y, _, _ = objectives.data()
    params = {"objective": "binary", "num_threads": 1, "verbose": -1}
    library.train(params, library.Dataset(x, y), 3).save_model(base := f"{tmp_path}/base.txt")
    begun = partial(lightgbm, others=early_lightgbm, base=base, learning_rate=0.6)
    same_in_segments(tmp_path / "lightgbm", begun, 4, True)
    data = other_library.DMatrix(x, y)
    trained = other_library.train({"objective": "binary:logistic", "nthread": 1}, data, 3)
    trained.save_model(base := f"{tmp_path}/base.ubj")
    begun = partial(xgboost, others=partial(early_xgboost, False), base=base)
    same_in_segments(tmp_path / "xgboost", begun, 3, True)


# ---- CatBoost


def catboost(
    trial: Any,
    others: Callable[[], list[Any]] = list,
    first: bool = True,
    fit: str | None = None,
    **params: Any,
) -> Any:
    from catboost import CatBoostClassifier
    from optuna_deadline_catboost import DeadlineCallback

    x, y, xv, yv = objectives.data()
    deadline = DeadlineCallback(trial, "validation-Logloss", rounds=ROUNDS, fit=fit)
    model = CatBoostClassifier(
        iterations=ROUNDS, depth=3, thread_count=1, verbose=False,
        train_dir=os.environ.get("TRAIN_DIR", "catboost_info"), **params,
    )  # fmt: skip
    counting = others()
    callbacks = [deadline, *counting] if first else [*counting, deadline]
    options = deadline.fit_options() | {"snapshot_interval": 0}
    model.fit(x, y, eval_set=(xv, yv), callbacks=callbacks, **options)
    value, seen = deadline.result(model), [vars(one) for one in counting]
    predicted = model.predict(xv, prediction_type="RawFormulaVal").tolist()
    return predicted, seen, value, model.get_evals_result(), model.best_iteration_


class Patience:
    rounds = 0

    def __init__(self, most: int) -> None:
        self.most = most
        self.seen: list[int] = []

    def after_iteration(self, info: Any) -> bool:
        self.rounds += 1
        self.seen.append(info.iteration)
        return self.rounds < self.most


@pytest.mark.parametrize("leave_at", [1, 4])
@pytest.mark.parametrize(
    ("others", "params", "early"),
    [
        (lambda: [Patience(99)], {}, False),
        (lambda: [Patience(7), Patience(99)], {}, True),
        (list, {"learning_rate": 1.0, "early_stopping_rounds": 2}, True),
    ],
)
def test_catboost(tmp_path: Path, others: Any, params: Any, early: bool, leave_at: int) -> None:
    same_in_segments(tmp_path, lambda trial: catboost(trial, others, **params), leave_at, early)


def test_the_other_callbacks_of_catboost_come_after_this_one(tmp_path: Path) -> None:
    trial = FakeTrial(FakeSegment(tmp_path, 1, None, 3), {})
    with pytest.raises(DeadlineError, match="as the first of CatBoost's callbacks"):
        catboost(trial, lambda: [Patience(9)], first=False)


def test_catboost_goes_on_from_a_snapshot_of_the_round_before(tmp_path: Path) -> None:
    class Failing(Patience):
        def after_iteration(self, info: Any) -> bool:
            if info.iteration == fails_at:
                raise RuntimeError("a crash")
            return super().after_iteration(info)

    fails_at, segments, results = 99, [], []
    for name in ("whole", "fails", "again"):
        (own := tmp_path / name).mkdir()
        resumed = segments[1].saved if name == "again" else None
        segments.append(FakeSegment(own, 1, resumed, 10**9))
        fails_at = 8 if name == "fails" else 99
        reports: dict[int, float] = {}
        try:
            results.append(catboost(FakeTrial(segments[-1], reports), lambda: [Failing(99)]))
        except Exception:
            assert name == "fails" and 1 <= len(reports) <= 8
    assert results[0] == results[1] and len(reports) < ROUNDS


STOPPED_EARLY: dict[Any, dict[str, Any]] = {
    xgboost: {"early_stopping_rounds": 3, "params": {"eta": 2.5}},
    lightgbm: {"learning_rate": 1.5, "early_stopping_round": 3},
    catboost: {"learning_rate": 1.0, "early_stopping_rounds": 2},
}


@pytest.mark.parametrize("train", STOPPED_EARLY)
@pytest.mark.parametrize("leave_at", [2, 5])
def test_folds_that_stop_early(tmp_path: Path, train: Any, leave_at: int) -> None:
    def folds(trial: Any) -> Any:
        options = STOPPED_EARLY[train]
        return [train(trial, fit=f"fold-{fold}", **options) for fold in range(3)]

    whole, reports, _ = train_in_segments(tmp_path / "a", folds, 10**9)
    left, reported, segments = train_in_segments(tmp_path / "b", folds, leave_at)
    assert left == whole and reported == reports
    assert segments > 2 and len(reports) < 3 * ROUNDS


# ---- Keras


@pytest.mark.slow
@pytest.mark.parametrize("last", [False, True])
def test_keras(tmp_path: Path, last: bool) -> None:
    """The callback saves what others have counted, wherever it stands, and Keras has recorded."""

    def others(keras: Any) -> list[Any]:
        early = keras.callbacks.EarlyStopping("val_loss", min_delta=0.1, patience=4)
        counted = {"epochs": 0}

        def slower(epoch: int, rate: float) -> float:
            counted["epochs"] += 1
            return 0.01 * 0.9 ** counted["epochs"]

        return [early, keras.callbacks.LearningRateScheduler(slower)]

    def kind(keras: Any) -> Any:
        class Weighted(keras.Sequential):  # type: ignore[misc]
            steps = 0

            def compute_loss(self, *args: Any, training: bool = True, **also: Any) -> Any:
                self.steps += training
                loss = super().compute_loss(*args, training=training, **also)
                return loss * (1 + self.steps / 100) if training else loss

        return Weighted

    def train(trial: Any) -> Any:
        predicted, value = objectives.keras(trial, others=others, last=last, kind=kind)
        return predicted.tolist(), objectives.histories[-1], value

    same_in_segments(tmp_path, train, 1, True)
