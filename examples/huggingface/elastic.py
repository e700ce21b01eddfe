"""Hugging Face under workers: trials pause, resume and change their slots after any step."""

import argparse

import optuna
import torch
from optuna_deadline_transformers import DeadlineCallback
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import optuna_deadline

config = BertConfig(
    vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
)


class Rows(Dataset):
    """Whether the first four tokens of a row have a large sum."""

    def __init__(self, rows, seed):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(0, 50, (rows, 16), generator=generator)
        self.labels = (self.tokens[:, :4].sum(1) > 100).long()

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


def objective(trial):
    deadline = DeadlineCallback(trial, "eval_loss")
    rate = trial.suggest_float("learning_rate", 1e-5, 1e-2, log=True)
    args = TrainingArguments(
        "out", eval_strategy="epoch", learning_rate=rate, report_to=[], disable_tqdm=True
    )
    trainer = Trainer(
        model_init=lambda: BertForSequenceClassification(config),
        args=deadline.adapt(args),
        train_dataset=Rows(512, 0),
        eval_dataset=Rows(256, 1),
        callbacks=[deadline],
    )
    trainer.train(resume_from_checkpoint=deadline.checkpoint)
    return deadline.value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deadline", default="40s", help="from now, as in 40s or 2h30m")
    args = parser.parse_args()
    study = optuna.create_study(direction="minimize", storage="sqlite:///examples.db")
    result = optuna_deadline.run(study, objective, cpus=2, deadline=args.deadline)  # or gpus="all"
    if not result.checkpoint_ok:
        raise SystemExit("Nothing was saved in that time: give a later deadline.")
    print(f"Best loss {result.value:.3f} of {len(study.trials)} trials: {result.params}")
    print(result.how_to_load())
