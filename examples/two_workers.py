"""Two workers on one study, each a process that offers one slot to the study's pool.

With several machines, start such a worker on each, with a PostgreSQL storage and a shared folder
for checkpoints. The training loop is an ordinary one, without Lightning.
"""

import argparse
import multiprocessing
import pickle

import optuna
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

import optuna_deadline

EPOCHS = 27


def objective(trial):
    images, digits = load_digits(return_X_y=True)
    train, valid, train_digits, valid_digits = train_test_split(images, digits, random_state=0)
    lr = trial.suggest_float("lr", 1e-5, 1e-1, log=True)
    width = trial.suggest_int("width", 8, 64, log=True)
    part = optuna_deadline.segment(trial)
    part.horizon(EPOCHS)  # the epoch after which it stops by itself
    epoch, accuracy, model = 0, 0.0, MLPClassifier(width, learning_rate_init=lr, random_state=0)
    if part.resume:  # it was paused or moved, or its machine died: resume
        epoch, accuracy, model = pickle.loads(part.resume.read_bytes())
    while epoch < EPOCHS:
        model.partial_fit(train, train_digits, classes=range(10))
        epoch, accuracy = epoch + 1, model.score(valid, valid_digits)
        trial.report(accuracy, epoch)
        state = pickle.dumps((epoch, accuracy, model))
        part.save(lambda path, state=state: path.write_bytes(state), step=epoch, value=accuracy)
        if part.directive().leave:
            part.leave()
    return accuracy


def worker(study, storage, deadline):
    """Run one worker; the first process stores the deadline for both."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    loaded = optuna.load_study(study_name=study, storage=storage)
    optuna_deadline.run(loaded, objective, cpus=1, deadline=deadline)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deadline", default="20s", help="from now, as in 20s or 2h30m")
    parser.add_argument("--storage", default="sqlite:///examples.db")
    args = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    study = optuna.create_study(direction="maximize", storage=args.storage)
    spawn = multiprocessing.get_context("spawn")
    given = (study.study_name, args.storage, args.deadline)
    workers = [spawn.Process(target=worker, args=given) for _ in range(2)]
    for process in workers:
        process.start()
    for process in workers:
        process.join()
    print(f"Workers left with {[process.exitcode for process in workers]}.")
    if not study.get_trials(states=[optuna.trial.TrialState.COMPLETE]):
        raise SystemExit("No epoch ended in that time: give a later deadline.")
    print(f"Best accuracy {study.best_value:.3f}: trial {study.best_trial.number}.")
    print(study.best_params)
