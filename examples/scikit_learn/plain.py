"""scikit-learn under ``study.optimize``: two lines in the study, one in the loop.

Start it several times at once with the same --study: the first process stores the deadline.
"""

import argparse
import warnings

import optuna
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from optuna_deadline import DeadlinePruner, DeadlineSampler, best, out_of_time

X, Y = load_digits(return_X_y=True)
EPOCHS = 27


def objective(trial):
    model = SGDClassifier(
        loss=trial.suggest_categorical("loss", ["log_loss", "hinge", "modified_huber"]),
        alpha=trial.suggest_float("alpha", 1e-6, 1e-1, log=True),
        learning_rate="constant",
        eta0=trial.suggest_float("eta0", 1e-4, 1.0, log=True),
    )
    accuracy = 0.0
    for epoch in range(1, EPOCHS + 1):
        model.partial_fit(X[:1200], Y[:1200], classes=range(10))
        accuracy = model.score(X[1200:], Y[1200:])
        trial.report(accuracy, epoch)
        if out_of_time(trial):  # the next report would be too late: return the value
            break
        if trial.should_prune():
            raise optuna.TrialPruned()
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deadline", default="20s", help="from now, as in 20s or 2h30m")
    parser.add_argument("--study", help="a name, for several processes to share")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # a large eta0 overflows
    study = optuna.create_study(
        study_name=args.study,
        storage="sqlite:///examples.db",
        load_if_exists=args.study is not None,
        direction="maximize",
        pruner=DeadlinePruner(args.deadline),
        sampler=DeadlineSampler(),
    )
    study.optimize(objective)
    found = best(study)
    print(f"Best accuracy {found.value:.3f} of {len(study.trials)} trials: {found.params}")
