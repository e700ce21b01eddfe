"""Hugging Face under ``hyperparameter_search``: three of its keyword arguments."""

import argparse

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from optuna_deadline import DeadlinePruner, DeadlineSampler

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


def make_model(trial):
    return BertForSequenceClassification(config)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deadline", default="20s", help="from now, as in 40s or 2h30m")
    args = parser.parse_args()
    trainer = Trainer(
        model_init=make_model,
        args=TrainingArguments("out", eval_strategy="epoch", report_to=[], disable_tqdm=True),
        train_dataset=Rows(512, 0),
        eval_dataset=Rows(256, 1),
    )
    found = trainer.hyperparameter_search(
        lambda trial: {
            "learning_rate": trial.suggest_float("learning_rate", 1e-5, 1e-2, log=True)
        },
        compute_objective=lambda metrics: metrics["eval_loss"],
        n_trials=None,
        pruner=DeadlinePruner(args.deadline),
        sampler=DeadlineSampler(),
    )
    print(f"Best loss {found.objective:.3f}: {found.hyperparameters}")
