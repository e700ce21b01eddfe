"""CatBoost under workers: trials pause and resume between any two rounds, exactly."""

import argparse

import optuna
from catboost import CatBoostClassifier
from optuna_deadline_catboost import DeadlineCallback
from sklearn.datasets import load_digits

import optuna_deadline

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
    model.fit(*TRAIN, eval_set=VALID, callbacks=[deadline], **deadline.fit_options())
    return deadline.result(model)


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
