"""A PyTorch loop under workers: trials pause, resume and change their slots at any step."""

import argparse

import optuna
import torch
from optuna_deadline_torch import ElasticLoop
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import optuna_deadline

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
    loop = ElasticLoop(trial, model, optimizer, epochs=EPOCHS)
    for _ in loop.epochs():
        for x, y in loop.batches(loader):
            optimizer.zero_grad()
            loop.backward(nn.functional.cross_entropy(loop.model(x), y))
            optimizer.step()
        loop.report(accuracy(model))
    return loop.result()


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
