"""A study with a deadline, around another sampler."""

import os
import time

import optuna
import optunahub

from optuna_deadline import DeadlinePruner, best, out_of_time

EPOCHS = 27
deadline = optunahub.load_module(package="samplers/deadline")


def objective(trial: optuna.Trial) -> float:
    lr = trial.suggest_float("lr", 1e-3, 1.0, log=True)
    loss = 1.0
    for epoch in range(1, EPOCHS + 1):
        time.sleep(0.02)  # your training
        loss *= 1 - 0.2 * lr
        trial.report(loss, epoch)
        if out_of_time(trial):  # the next report would be too late
            break
        if trial.should_prune():
            raise optuna.TrialPruned()
    return loss


if __name__ == "__main__":
    study = optuna.create_study(
        storage="sqlite:///deadline.db",
        sampler=deadline.DeadlineSampler(optuna.samplers.RandomSampler(seed=0)),
        pruner=DeadlinePruner(os.environ.get("DEADLINE", "10s"), max_resource=EPOCHS),
    )
    study.optimize(objective)
    print(best(study))  # the best report of any trial
