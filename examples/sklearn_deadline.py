"""Add a deadline to a study that runs with ``study.optimize``: scikit-learn, without workers.

Start it several times at once with the same --storage and --study: the first process stores the
deadline, the others use it.
"""

import argparse
import warnings

import optuna
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split

from optuna_deadline import DeadlinePruner, DeadlineSampler, best, out_of_time

EPOCHS = 27


def objective(trial: optuna.Trial) -> float:
    images, digits = load_digits(return_X_y=True)
    train, valid, train_digits, valid_digits = train_test_split(images, digits, random_state=0)
    model = SGDClassifier(
        loss=trial.suggest_categorical("loss", ["log_loss", "hinge", "modified_huber"]),
        alpha=trial.suggest_float("alpha", 1e-6, 1e-1, log=True),
        learning_rate="constant",
        eta0=trial.suggest_float("eta0", 1e-4, 1.0, log=True),
        random_state=0,
    )
    accuracy = 0.0
    for epoch in range(1, EPOCHS + 1):
        model.partial_fit(train, train_digits, classes=range(10))
        accuracy = model.score(valid, valid_digits)
        trial.report(accuracy, epoch)
        if out_of_time(trial):  # the next report would be too late: return the value
            break
        if trial.should_prune():
            raise optuna.TrialPruned()
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deadline", default="20s", help="from now, as in 20s or 2h30m")
    parser.add_argument("--storage", default="sqlite:///examples.db")
    parser.add_argument("--study", help="a name, for several processes to share")
    args = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # a large eta0 overflows

    study = optuna.create_study(
        study_name=args.study,
        storage=args.storage,
        load_if_exists=args.study is not None,
        direction="maximize",
        pruner=DeadlinePruner(args.deadline, max_resource=EPOCHS),
        sampler=DeadlineSampler(),
    )
    study.optimize(objective)
    found = best(study)
    pruned = len(study.get_trials(states=[optuna.trial.TrialState.PRUNED]))
    print(f"{len(study.trials)} trials by the deadline, {pruned} of them pruned early.")
    print(f"Best accuracy {found.value:.3f}: trial {found.number}, epoch {found.step}.")
    print(found.params)
