"""Tasks on which policies differ, from nothing but this machine: no download, two CPU cores.

``bytes`` is a small GPT on the sources of Python's library, ``mnist1d`` a network that names noisy
curves. Their objectives use ``DeadlineCallback``, so trials pause, resume and change their slots.
"""

import argparse

import optuna
from optuna_deadline_demo import TASKS

import optuna_deadline

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", nargs="?", choices=TASKS, default="mnist1d")
    parser.add_argument("--deadline", default="3m", help="from now, as in 40s or 2h30m")
    parser.add_argument("--storage", default="sqlite:///examples.db")
    args = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    task = TASKS[args.task]
    study = optuna.create_study(direction=task.direction, storage=args.storage)
    result = optuna_deadline.run(study, task.objective, cpus=2, deadline=args.deadline)
    if not result.checkpoint_ok:
        raise SystemExit("No epoch was saved in that time: give a later deadline.")
    print(f"Best value {result.value:.4f} of {len(study.trials)} trials: {result.trial_number}.")
    print(study.best_params)
