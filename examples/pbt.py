"""Population-based training (arXiv:1711.09846): the worst copies the best. Or --simulate."""

import random
import sys
import time

import numpy as np
import optuna

import optuna_deadline
from optuna_deadline.policies import Opening, Plan, Retire, Run
from optuna_deadline.simulation import Cluster, Workload, simulate

STEPS, EVERY = 60, 5  # steps of a training, and between two looks at the population
SPACE = [{"lr": 10.0 ** (-place / 12)} for place in range(49)]
gain = lambda lr: 0.05 * np.exp(-((np.log10(lr) + 2) ** 2))  # noqa: E731


class PBT:
    reads_parameters = True  # the snapshot shows the parameters of trials

    def plan(self, snapshot):
        alive = [trial for trial in snapshot.trials if trial.alive]
        orders = {trial.number: Run(1, "one of the population") for trial in alive}
        ranked = sorted((t for t in alive if t.reports), key=lambda t: -t.best_score)
        opened = []
        if len(ranked) >= snapshot.capacity > 1 and ranked[-1].step >= ranked[0].step - EVERY:
            best, worst = ranked[0], ranked[-1]
            if len(worst.reports) >= EVERY and best.params and best.best_score > worst.best_score:
                place = round(-12 * np.log10(best.params["lr"]))
                near = place + random.Random(len(snapshot.trials)).choice((-3, -2, 2, 3))
                params = SPACE[min(max(near, 0), len(SPACE) - 1)]
                orders[worst.number] = Retire(f"trial {best.number} is better")
                opened.append(Opening(params, f"trial {best.number} goes on", best.number))
        free = snapshot.capacity - len(alive)
        return Plan(orders, start=max(0, free), openings=tuple(opened))


def objective(trial):
    lr, state = trial.suggest_float("lr", 1e-4, 1.0, log=True), {"score": 0.0}
    training = optuna_deadline.resumable(trial, steps=STEPS, state=state)
    for step in training:
        time.sleep(0.02)
        state["score"] += gain(lr) * (1 - state["score"])
        step.report(state["score"])
    return training.result()


if __name__ == "__main__" and "--simulate" in sys.argv:
    curves = tuple(tuple(1 - (1 - gain(p["lr"])) ** (s + 1) for s in range(STEPS)) for p in SPACE)
    workload = Workload("toy", curves, (1.0,) * len(SPACE), tuple(SPACE)).shuffled(2)
    for name, policy in {"pbt": PBT(), "fifo": "fifo"}.items():
        print(name, simulate(policy, workload, Cluster(slots=4), deadline="80s").regret)
elif __name__ == "__main__":
    study = optuna.create_study(storage="sqlite:///pbt.db", direction="maximize")
    options = optuna_deadline.WorkerOptions(cpus=4, oversubscribe=True)
    result = optuna_deadline.run(study, objective, sys.argv[-1], worker=options, policy=PBT())
    print(f"Best score {result.value:.4f} with lr {study.best_params['lr']:.4g}")
