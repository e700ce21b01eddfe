"""scikit-learn under workers: a model that trains by ``partial_fit`` is saved after each epoch."""

import argparse

import joblib
import optuna
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

import optuna_deadline

X, Y = load_digits(return_X_y=True)
EPOCHS = 27


def objective(trial):
    part = optuna_deadline.segment(trial)
    part.horizon(EPOCHS)  # the epoch after which the trial ends by itself
    model = MLPClassifier(
        trial.suggest_int("width", 8, 64, log=True),
        learning_rate_init=trial.suggest_float("lr", 1e-5, 1e-1, log=True),
        random_state=trial.number,  # its generator is saved with the model
    )
    epoch, accuracy = 0, 0.0
    if (folder := part.resume_dir()) is not None:  # it was paused, or its machine died
        epoch, accuracy, model = joblib.load(folder / "training.joblib")
    while epoch < EPOCHS:
        model.partial_fit(X[:1200], Y[:1200], classes=range(10))
        epoch, accuracy = epoch + 1, model.score(X[1200:], Y[1200:])
        trial.report(accuracy, epoch)
        with part.save_dir(step=epoch, value=accuracy) as folder:
            joblib.dump((epoch, accuracy, model), folder / "training.joblib")
        if part.directive().leave:
            part.leave()
    return accuracy


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
