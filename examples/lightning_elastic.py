"""A Lightning objective whose trials pause, resume and change their slots on two CPU cores.

``--gpus all`` uses this machine's GPUs instead.
"""

import argparse
import logging
import warnings

import lightning as L
import optuna
from optuna_deadline_demo.digits import Digits, Net  # replace with your module and data
from optuna_deadline_lightning import DeadlineCallback

import optuna_deadline

QUIET = {
    "logger": False,
    "enable_checkpointing": False,  # the callback saves when necessary
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def objective(trial):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\..*")
    model = Net(
        width=trial.suggest_int("width", 16, 24, step=4),
        dropout=trial.suggest_float("dropout", 0.0, 0.5),
        lr=trial.suggest_float("lr", 1e-4, 1e-1, log=True),
        weight_decay=1e-4,
    )
    deadline = DeadlineCallback(trial, monitor="val_acc")
    trainer = L.Trainer(max_epochs=27, callbacks=[deadline], **QUIET, **deadline.trainer_options())
    trainer.fit(model, datamodule=Digits(), ckpt_path=deadline.ckpt_path)
    return trainer.callback_metrics["val_acc"].item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deadline", default="40s", help="from now, as in 40s or 2h30m")
    parser.add_argument("--storage", default="sqlite:///examples.db")
    parser.add_argument("--gpus", help="all, or how many; CPU slots if it is not given")
    args = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    study = optuna.create_study(direction="maximize", storage=args.storage)
    result = optuna_deadline.run(
        study, objective, cpus=None if args.gpus else 2, gpus=args.gpus, deadline=args.deadline
    )
    print(f"{len(study.trials)} trials; ended {-result.overshoot:.1f} s before the deadline.")
    if not result.checkpoint_ok:
        raise SystemExit("No epoch was saved in that time: give a later deadline.")
    print(f"Best val_acc {result.value:.3f}: trial {result.trial_number}, epoch {result.step}.")
    print(study.best_params)
    print(f"Checkpoint verified: {result.checkpoint_ok}. To load it:")
    print(result.how_to_load())
