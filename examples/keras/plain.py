"""Keras under ``study.optimize``: two lines in the study, and a callback that prunes."""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "torch")  # or jax, tensorflow

import keras
import optuna
from optuna_deadline_keras import DeadlineCallback
from sklearn.datasets import load_digits

from optuna_deadline import DeadlinePruner, DeadlineSampler, best

X, Y = load_digits(return_X_y=True)
TRAIN, VALID = (X[:1200] / 16, Y[:1200]), (X[1200:] / 16, Y[1200:])
EPOCHS = 20


def objective(trial):
    model = keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(trial.suggest_int("units", 8, 64, log=True), activation="relu"),
            keras.layers.Dropout(trial.suggest_float("dropout", 0.0, 0.5)),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    rate = trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)
    model.compile(
        keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    deadline = DeadlineCallback(trial, "val_accuracy", epochs=EPOCHS)
    model.fit(
        *TRAIN,
        epochs=EPOCHS,
        validation_data=VALID,
        callbacks=[deadline],
        verbose=0,
    )
    return deadline.result()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deadline", default="20s", help="from now, as in 40s or 2h30m")
    args = parser.parse_args()
    study = optuna.create_study(
        direction="maximize",
        pruner=DeadlinePruner(args.deadline),
        sampler=DeadlineSampler(),
    )
    study.optimize(objective)
    found = best(study)
    print(f"Best accuracy {found.value:.3f} of {len(study.trials)} trials: {found.params}")
