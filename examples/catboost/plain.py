"""CatBoost under ``study.optimize``: two lines in the study, and a callback that prunes."""

import argparse

import optuna
from catboost import CatBoostClassifier
from optuna_deadline_catboost import DeadlineCallback
from sklearn.datasets import load_digits

from optuna_deadline import DeadlinePruner, DeadlineSampler, best

X, Y = load_digits(return_X_y=True)
TRAIN, VALID = (X[:1200], Y[:1200]), (X[1200:], Y[1200:])
ROUNDS = 200


def objective(trial):
    deadline = DeadlineCallback(trial, "validation-MultiClass", rounds=ROUNDS)
    model = CatBoostClassifier(
        iterations=ROUNDS,
        depth=trial.suggest_int("depth", 2, 6),
        learning_rate=trial.suggest_float("learning_rate", 1e-3, 1.0, log=True),
        thread_count=1,
        verbose=False,
    )
    model.fit(*TRAIN, eval_set=VALID, callbacks=[deadline])
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
