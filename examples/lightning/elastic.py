"""Lightning under workers: trials pause, resume and change their slots at any step."""

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
    parser.add_argument("--gpus", help="all, or how many; CPU slots if it is not given")
    args = parser.parse_args()
    slots = {"gpus": args.gpus} if args.gpus else {"cpus": 2}
    study = optuna.create_study(direction="maximize", storage="sqlite:///examples.db")
    result = optuna_deadline.run(study, objective, args.deadline, **slots)
    if not result.checkpoint_ok:
        raise SystemExit("Nothing was saved in that time: give a later deadline.")
    print(f"Best accuracy {result.value:.3f} of {len(study.trials)} trials: {result.params}")
    print(result.how_to_load())
