"""XGBoost under workers: trials pause and resume between any two rounds."""

import argparse

import optuna
import xgboost
from optuna_deadline_xgboost import DeadlineCallback
from sklearn.datasets import load_digits

import optuna_deadline

X, Y = load_digits(return_X_y=True)
TRAIN, VALID = (X[:1200], Y[:1200]), (X[1200:], Y[1200:])
ROUNDS = 200


def objective(trial):
    deadline = DeadlineCallback(trial, "valid-mlogloss", rounds=ROUNDS)
    params = {
        "objective": "multi:softprob",
        "num_class": 10,
        "max_depth": trial.suggest_int("max_depth", 2, 8),
        "eta": trial.suggest_float("eta", 1e-3, 1.0, log=True),
        "subsample": trial.suggest_float("subsample", 0.5, 1.0),
        "seed": 7 + deadline.rounds_done,
    }
    booster = xgboost.train(
        params,
        xgboost.DMatrix(*TRAIN),
        num_boost_round=deadline.rounds_left,
        evals=[(xgboost.DMatrix(*VALID), "valid")],
        xgb_model=deadline.model,
        callbacks=[deadline],
        verbose_eval=False,
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
