"""One objective a framework, as its users write it; nothing is downloaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import numpy as np
from sklearn.datasets import load_digits

ROUNDS = 12


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    x, y = load_digits(return_X_y=True)
    return x[:300], y[:300] % 2, x[300:500], y[300:500] % 2


def xgboost(trial: Any, **options: Any) -> tuple[np.ndarray, float]:
    import xgboost
    from optuna_deadline_xgboost import DeadlineCallback

    x, y, xv, yv = data()
    deadline = DeadlineCallback(trial, "valid-logloss", rounds=ROUNDS, **options)
    params = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1}
    valid = xgboost.DMatrix(xv, yv)
    booster = xgboost.train(
        params, xgboost.DMatrix(x, y), num_boost_round=deadline.rounds_left,
        evals=[(valid, "valid")], xgb_model=deadline.model, callbacks=[deadline],
        verbose_eval=False,
    )  # fmt: skip
    return booster.predict(valid), deadline.result(booster)


def xgboost_sklearn(trial: Any, **options: Any) -> tuple[np.ndarray, float]:
    from optuna_deadline_xgboost import DeadlineCallback
    from xgboost import XGBClassifier

    x, y, xv, yv = data()
    deadline = DeadlineCallback(trial, "validation_0-logloss", rounds=ROUNDS, **options)
    model = XGBClassifier(
        n_estimators=deadline.rounds_left, max_depth=3, n_jobs=1, callbacks=[deadline]
    )
    model.fit(x, y, eval_set=[(xv, yv)], xgb_model=deadline.model, verbose=False)
    return model.predict_proba(xv), deadline.result(model)


def lightgbm(
    trial: Any, params: dict[str, Any] | None = None, **options: Any
) -> tuple[np.ndarray, float]:
    import lightgbm
    from optuna_deadline_lightgbm import DeadlineCallback

    x, y, xv, yv = data()
    deadline = DeadlineCallback(trial, "valid_0-binary_logloss", rounds=ROUNDS, **options)
    given = {"objective": "binary", "num_leaves": 7, "num_threads": 1, "verbose": -1}
    train = lightgbm.Dataset(x, y)
    booster = lightgbm.train(
        given | (params or {}), train, num_boost_round=deadline.rounds_left,
        valid_sets=[lightgbm.Dataset(xv, yv, reference=train)],
        init_model=deadline.model, callbacks=[deadline],
    )  # fmt: skip
    return booster.predict(xv), deadline.result(booster)


def lightgbm_sklearn(trial: Any, **options: Any) -> tuple[np.ndarray, float]:
    from lightgbm import LGBMClassifier
    from optuna_deadline_lightgbm import DeadlineCallback

    x, y, xv, yv = data()
    deadline = DeadlineCallback(trial, "valid_0-binary_logloss", rounds=ROUNDS, **options)
    model = LGBMClassifier(n_estimators=deadline.rounds_left, num_leaves=7, n_jobs=1, verbose=-1)
    model.fit(x, y, eval_set=[(xv, yv)], init_model=deadline.model, callbacks=[deadline])
    return model.predict_proba(xv), deadline.result(model)


def catboost(trial: Any, **options: Any) -> tuple[np.ndarray, float]:
    from catboost import CatBoostClassifier
    from optuna_deadline_catboost import DeadlineCallback

    x, y, xv, yv = data()
    deadline = DeadlineCallback(trial, "validation-Logloss", rounds=ROUNDS, **options)
    model = CatBoostClassifier(
        iterations=ROUNDS, depth=3, rsm=0.5, subsample=0.7, bootstrap_type="Bernoulli",
        use_best_model=False, thread_count=1, verbose=False,
        allow_writing_files=bool(deadline.fit_options()),
        train_dir=os.environ.get("TRAIN_DIR", "catboost_info"),
    )  # fmt: skip
    model.fit(x, y, eval_set=(xv, yv), callbacks=[deadline], **deadline.fit_options())
    value = deadline.result(model)
    return model.predict(xv, prediction_type="RawFormulaVal"), value


def keras(
    trial: Any,
    freeze_at: int | None = None,
    validation_freq: int = 1,
    others: Callable[[Any], list[Any]] = lambda _: [],
    last: bool = True,
    kind: Callable[[Any], Any] = lambda keras: keras.Sequential,
    **options: Any,
) -> tuple[np.ndarray, float]:
    import keras
    from optuna_deadline_keras import DeadlineCallback

    x, y, xv, yv = data()
    keras.utils.set_random_seed(5)
    model = kind(keras)([
        keras.layers.Input((64,)),
        keras.layers.Dense(8, activation="relu"),
        keras.layers.Dropout(0.3),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(1, activation="sigmoid"),
    ])  # fmt: skip
    model.compile("adam", "binary_crossentropy")
    deadline = DeadlineCallback(trial, "val_loss", epochs=ROUNDS, **options)

    def freeze(epoch: int, logs: Any) -> None:
        if epoch == freeze_at:
            model.layers[0].trainable = False

    callbacks = [keras.callbacks.LambdaCallback(on_epoch_begin=freeze), *others(keras)]
    history = model.fit(
        x / 16, y, epochs=ROUNDS, initial_epoch=deadline.initial_epoch, verbose=0,
        validation_data=(xv / 16, yv), validation_freq=validation_freq,
        callbacks=[*callbacks, deadline] if last else [deadline, *callbacks],
    )  # fmt: skip
    histories.append(history.history)
    return model.predict(xv / 16, verbose=0), deadline.result()


#: What ``fit`` has returned, in the order of the trainings.
histories: list[dict[str, list[float]]] = []

TRAININGS = {
    one.__name__: one
    for one in (xgboost, xgboost_sklearn, lightgbm, lightgbm_sklearn, catboost, keras)
}


def _under_worker(train: Any) -> Any:
    def objective(trial: Any) -> float:
        trial.suggest_float("x", 0.0, 1.0)
        return float(train(trial)[1])

    return objective


xgboost_under_worker = _under_worker(xgboost)
lightgbm_under_worker = _under_worker(lightgbm)
catboost_under_worker = _under_worker(catboost)
