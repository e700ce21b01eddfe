"""DyHPO (NeurIPS 2022) in short: a Gaussian process says what to train next. Or --simulate."""

import sys
import time

import numpy as np
import optuna
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern, WhiteKernel

import optuna_deadline
from optuna_deadline.policies import Opening, Pause, Plan, Run
from optuna_deadline.simulation import Cluster, Workload, simulate

STEPS, SPACE = 27, [{"lr": 10.0 ** (-place / 12)} for place in range(49)]
KERNEL = Matern([1.0, 1.0], nu=2.5) + WhiteKernel(1e-4)
score = lambda lr, step: (1 - abs(np.log10(lr) + 2) / 3) * (1 - 0.8**step)  # noqa: E731
point = lambda params, step: [np.log10(params["lr"]), np.log(1 + step)]  # noqa: E731


class DyHPO:
    reads_parameters = True  # the snapshot shows the parameters of trials

    def plan(self, snapshot):
        trials = [trial for trial in snapshot.trials if trial.params]
        seen = [(point(t.params, r.step), r.score) for t in trials for r in t.reports]
        new = [Opening(p, "new") for p in SPACE if all(p != t.params for t in trials)]
        options = [(t, t.step + 1) for t in trials if t.alive] + [(each, 1) for each in new]
        if seen and options:
            model = GaussianProcessRegressor(KERNEL).fit(*zip(*seen, strict=True))
            mean, error = model.predict([point(o.params, s) for o, s in options], return_std=True)
            gain = (mean - max(value for _, value in seen)) / np.maximum(error, 1e-9)
            worth = error * (gain * norm.cdf(gain) + norm.pdf(gain))  # expected improvement
            options = [options[place] for place in np.argsort(-worth, kind="stable")]
        chosen = [option for option, _ in options[: snapshot.capacity]]
        orders = {t.number: Pause("others promise more") for t in snapshot.trials if t.alive}
        orders |= {o.number: Run(1, "most to gain") for o in chosen if o in snapshot.trials}
        opened = tuple(option for option in chosen if isinstance(option, Opening))
        return Plan(orders, openings=opened, gate_open=bool(new))


def objective(trial):
    lr = trial.suggest_float("lr", 1e-4, 1.0, log=True)
    training = optuna_deadline.resumable(trial, steps=STEPS, state={})
    for step in training:
        time.sleep(0.02)
        step.report(score(lr, step))
    return training.result()


if __name__ == "__main__" and "--simulate" in sys.argv:
    curves = tuple(tuple(score(p["lr"], s + 1) for s in range(STEPS)) for p in SPACE)
    workload = Workload("toy", curves, (1.0,) * len(SPACE), tuple(SPACE)).shuffled(1)
    for name, policy in {"dyhpo": DyHPO(), "halving": "adaptive_halving", "fifo": "fifo"}.items():
        print(name, simulate(policy, workload, Cluster(slots=2), deadline="60s").regret)
elif __name__ == "__main__":
    study = optuna.create_study(storage="sqlite:///dyhpo.db", direction="maximize")
    result = optuna_deadline.run(study, objective, sys.argv[-1], cpus=2, policy=DyHPO())
    print(f"Best score {result.value:.4f} with lr {study.best_params['lr']:.4g}")
