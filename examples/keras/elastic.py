"""Keras under workers: trials pause and resume between any two epochs, on any backend."""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "torch")  # or jax, tensorflow

import keras
import optuna
from optuna_deadline_keras import DeadlineCallback
from sklearn.datasets import load_digits

import optuna_deadline

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
        initial_epoch=deadline.initial_epoch,
        validation_data=VALID,
        callbacks=[deadline],
        verbose=0,
    )
    return deadline.result()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deadline", default="40s", help="from now, as in 40s or 2h30m")
    args = parser.parse_args()
    study = optuna.create_study(direction="maximize", storage="sqlite:///examples.db")
    result = optuna_deadline.run(study, objective, cpus=2, deadline=args.deadline)  # or gpus="all"
    if not result.checkpoint_ok:
        raise SystemExit("Nothing was saved in that time: give a later deadline.")
    print(f"Best accuracy {result.value:.3f} of {len(study.trials)} trials: {result.params}")
    print(result.how_to_load())
