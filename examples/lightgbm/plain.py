"""LightGBM under ``study.optimize``: two lines in the study, and a callback that prunes."""

import argparse

import optuna
from lightgbm import LGBMClassifier
from optuna_deadline_lightgbm import DeadlineCallback
from sklearn.datasets import load_digits

from optuna_deadline import DeadlinePruner, DeadlineSampler, best

X, Y = load_digits(return_X_y=True)
TRAIN, VALID = (X[:1200], Y[:1200]), (X[1200:], Y[1200:])
ROUNDS = 200


def objective(trial):
    deadline = DeadlineCallback(trial, "valid_0-multi_logloss", rounds=ROUNDS)
    model = LGBMClassifier(
        n_estimators=ROUNDS,
        num_leaves=trial.suggest_int("num_leaves", 4, 64, log=True),
        learning_rate=trial.suggest_float("learning_rate", 1e-3, 1.0, log=True),
        verbose=-1,
    )
    model.fit(*TRAIN, eval_X=VALID[0], eval_y=VALID[1], callbacks=[deadline])
    return deadline.result(model)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deadline", default="20s", help="from now, as in 40s or 2h30m")
    args = parser.parse_args()
    study = optuna.create_study(
        direction="minimize",
        pruner=DeadlinePruner(args.deadline),
        sampler=DeadlineSampler(),
    )
    study.optimize(objective)
    found = best(study)
    print(f"Best log loss {found.value:.3f} of {len(study.trials)} trials: {found.params}")
