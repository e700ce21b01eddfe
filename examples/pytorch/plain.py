"""A PyTorch loop under ``study.optimize``: two lines in the study, one in the loop."""

import argparse

import optuna
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from optuna_deadline import DeadlinePruner, DeadlineSampler, best, out_of_time

X, Y = map(torch.tensor, load_digits(return_X_y=True))
X = X.float() / 16
EPOCHS = 27


def accuracy(model):
    with torch.no_grad():
        return (model(X[1200:]).argmax(1) == Y[1200:]).double().mean().item()


def objective(trial):
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), trial.suggest_float("lr", 1e-3, 1, log=True))
    loader = DataLoader(TensorDataset(X[:1200], Y[:1200]), batch_size=32, shuffle=True)
    value = 0.0
    for epoch in range(1, EPOCHS + 1):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        value = accuracy(model)
        trial.report(value, epoch)
        if out_of_time(trial):  # the next report would be too late
            break
        if trial.should_prune():
            raise optuna.TrialPruned()
    return value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deadline", default="20s", help="from now, as in 40s or 2h30m")
    args = parser.parse_args()
    study = optuna.create_study(
        direction="maximize",
        pruner=DeadlinePruner(args.deadline),
        sampler=DeadlineSampler(),
    )
    study.optimize(objective)
    found = best(study)
    print(f"Best accuracy {found.value:.3f} of {len(study.trials)} trials: {found.params}")
