"""A study on a Ray cluster: an agent on each node; trials move where there are GPUs.

Ray runs on this machine if no cluster is named by ``RAY_ADDRESS``.
"""

import argparse
import time

import optuna
from optuna_deadline_ray import launch

import optuna_deadline


def objective(trial):
    rate = trial.suggest_float("rate", 0.01, 0.2)
    state = {"loss": 1.0}
    training = optuna_deadline.resumable(trial, steps=27, state=state)
    for step in training:
        time.sleep(0.1)  # your training
        state["loss"] *= 1 - rate
        step.report(state["loss"])
    return training.result()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deadline", default="60s", help="from now, as in 40s or 2h30m")
    parser.add_argument("--storage", default="sqlite:///examples.db", help="PostgreSQL for nodes")
    args = parser.parse_args()
    study = optuna.create_study(storage=args.storage)
    result = launch(study, objective, cpus=2, deadline=args.deadline)  # without cpus=, all GPUs
    print(f"Best loss {result.value:.3f} of {len(study.trials)} trials: {result.params}")
