"""The objective that ``submit.sh`` trains: as on one machine."""

import lightning as L
from optuna_deadline_demo.digits import Digits, Net  # replace with your module and data
from optuna_deadline_lightning import DeadlineCallback


def objective(trial):
    lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    model = Net(width=16, dropout=0.1, lr=lr, weight_decay=1e-4)
    deadline = DeadlineCallback(trial, monitor="val_acc")
    trainer = L.Trainer(max_epochs=27, callbacks=[deadline], **deadline.trainer_options())
    trainer.fit(model, datamodule=Digits(), ckpt_path=deadline.ckpt_path)
    return trainer.callback_metrics["val_acc"].item()
