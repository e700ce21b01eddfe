"""A tiny BERT with random weights: nothing is downloaded, and it trains in a second."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path
from random import randrange
from typing import Any

import torch
from optuna_deadline_transformers import DeadlineCallback
from torch.utils.data import Dataset, IterableDataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

EPOCHS = 3


class Sums(Dataset[dict[str, Any]]):
    """Whether the first four tokens of a row have a large sum."""

    def __init__(self, rows: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(0, 50, (rows, 16), generator=generator)
        self.labels = (self.tokens[:, :4].sum(1) > 100).long()

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


def short(rows: int, seed: int) -> Sums:
    """Without the last three rows."""
    return Sums(rows - 3, seed)


class Augmented(Sums):
    """A token of a row that is read is hidden, by the global random numbers."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = super().__getitem__(index)
        hidden = (torch.arange(16) == torch.randint(16, ())) | (torch.arange(16) == randrange(16))
        return {**row, "input_ids": row["input_ids"].masked_fill(hidden, 0)}


class Stream(IterableDataset[dict[str, Any]]):
    """Rows without a length."""

    def __init__(self, rows: int, seed: int) -> None:
        self._rows = Sums(rows, seed)

    def __iter__(self) -> Any:
        return (self._rows[index] for index in range(len(self._rows)))


def make_model(dropout: float = 0.2, double: bool = False) -> BertForSequenceClassification:
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16, hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    return model.double() if double else model


def accuracy(found: Any) -> dict[str, float]:
    return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())}


def train(
    trial: Any, folder: Path, *, monitor: str = "eval_loss", **options: Any
) -> tuple[torch.Tensor, float]:
    """Train in a segment; the weights at the end, and the value."""
    deadline = DeadlineCallback(
        trial, monitor, fit=options.pop("fit", None), check=options.pop("check", False)
    )
    make = partial(make_model, options.pop("dropout", 0.2), options.pop("double", False))
    data, validation = options.pop("data", Sums), options.pop("validation", 64)
    callbacks: list[Any] = [deadline, *options.pop("callbacks", [])]
    if patience := options.pop("patience", None):
        callbacks.append(EarlyStoppingCallback(patience))
    given: dict[str, Any] = {
        "eval_strategy": "epoch", "num_train_epochs": EPOCHS, "learning_rate": 1e-2,
        "per_device_train_batch_size": 16, "report_to": [], "disable_tqdm": True,
        "use_cpu": True, "logging_strategy": "no", "lr_scheduler_type": "cosine",
        "dataloader_pin_memory": False, "save_strategy": "no",
    }  # fmt: skip
    made = options.pop("trainer", Trainer)
    args = TrainingArguments(output_dir=str(folder / "out"), **(given | options))
    trainer = made(
        model_init=make, args=deadline.adapt(args), compute_metrics=accuracy,
        train_dataset=data(64, 0), eval_dataset=Sums(validation, 1), callbacks=callbacks,
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=deadline.checkpoint)
    return weights(trainer.model), deadline.value


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([one.detach().flatten() for one in model.parameters()])


class Counting(TrainerCallback):
    """Counts its events, and sets the rate by them."""

    def __init__(self) -> None:
        self.begun = self.steps = self.epochs = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **also: Any) -> None:
        self.steps, self.begun = 0, self.begun + 1

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **also: Any) -> None:
        self.epochs += 1

    def on_step_begin(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **also: Any
    ) -> None:
        self.steps += 1
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (self.begun + self.steps + 3 * self.epochs)


class Thawing(TrainerCallback):
    """Trains the embeddings from the second epoch on, with less and less dropout."""

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **also: Any
    ) -> None:
        model.bert.embeddings.requires_grad_(False)

    def on_epoch_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **also: Any
    ) -> None:
        if round(state.epoch) == 1:
            model.bert.embeddings.requires_grad_(True)

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **also: Any
    ) -> None:
        model.dropout.p *= 0.9


class CountingTrainer(Trainer):
    """Weighs its losses by their number."""

    losses = 0

    def compute_loss(self, *args: Any, **options: Any) -> Any:
        loss = super().compute_loss(*args, **options)
        if isinstance(loss, tuple):  # of an evaluation
            return loss
        self.losses += 1
        return loss * (1 + self.losses / 100)


class Paced(TrainerCallback):
    """A step that takes a while, and a line for each."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def on_step_end(self, args: Any, state: Any, control: Any, **also: Any) -> None:
        time.sleep(0.03 / args.world_size)
        batch = args.per_device_train_batch_size, args.gradient_accumulation_steps
        with self._file.open("a") as file:
            file.write(json.dumps([state.global_step, args.world_size, *batch]) + "\n")


def objective(trial: Any) -> float:
    """For a worker: in double precision, and without dropout, which slots draw differently.

    The last batches of training and of validation are short.
    """
    folder = Path(os.environ["TRACE"])
    found, value = train(
        trial, folder, num_train_epochs=12, dropout=0.0, double=True, data=short, validation=61,
        use_cpu=False, callbacks=[Paced(folder / "steps.jsonl")],
        **json.loads(os.environ["OPTIONS"]),
    )  # fmt: skip
    torch.save(found, folder / "final.pt")
    return value
