"""LightGBM under workers: trials pause and resume between any two rounds."""

import argparse

import lightgbm
import optuna
from optuna_deadline_lightgbm import DeadlineCallback
from sklearn.datasets import load_digits

import optuna_deadline

X, Y = load_digits(return_X_y=True)
TRAIN, VALID = (X[:1200], Y[:1200]), (X[1200:], Y[1200:])
ROUNDS = 200


def objective(trial):
    deadline = DeadlineCallback(trial, "valid_0-multi_logloss", rounds=ROUNDS)
    params = {
        "objective": "multiclass",
        "num_class": 10,
        "num_leaves": trial.suggest_int("num_leaves", 4, 64, log=True),
        "learning_rate": trial.suggest_float("learning_rate", 1e-3, 1.0, log=True),
        "verbose": -1,
        "seed": 7 + deadline.rounds_done,
    }
    train = lightgbm.Dataset(*TRAIN)
    booster = lightgbm.train(
        params,
        train,
        num_boost_round=deadline.rounds_left,
        valid_sets=[lightgbm.Dataset(*VALID, reference=train)],
        init_model=deadline.model,
        callbacks=[deadline],
    )
    return deadline.result(booster)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deadline", default="40s", help="from now, as in 40s or 2h30m")
    args = parser.parse_args()
    study = optuna.create_study(direction="minimize", storage="sqlite:///examples.db")
    result = optuna_deadline.run(study, objective, cpus=2, deadline=args.deadline)  # or gpus="all"
    if not result.checkpoint_ok:
        raise SystemExit("Nothing was saved in that time: give a later deadline.")
    print(f"Best log loss {result.value:.3f} of {len(study.trials)} trials: {result.params}")
    print(result.how_to_load())
