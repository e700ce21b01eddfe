"""Lightning under ``study.optimize``: two lines in the study, and a callback that prunes."""

import argparse

import lightning as L
import optuna
from optuna_deadline_demo.digits import Digits, Net  # replace with your module and data
from optuna_deadline_lightning import DeadlineCallback

from optuna_deadline import DeadlinePruner, DeadlineSampler, best

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}


def objective(trial):
    model = Net(
        width=trial.suggest_int("width", 16, 24, step=4),
        dropout=trial.suggest_float("dropout", 0.0, 0.5),
        lr=trial.suggest_float("lr", 1e-4, 1e-1, log=True),
        weight_decay=1e-4,
    )
    deadline = DeadlineCallback(trial, monitor="val_acc")
    trainer = L.Trainer(max_epochs=27, callbacks=[deadline], **QUIET)
    trainer.fit(model, datamodule=Digits())
    return trainer.callback_metrics["val_acc"].item()


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
