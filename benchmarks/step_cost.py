"""The time that DeadlineCallback adds to a training step on one slot, in microseconds.

A process trains a small network on the CPU as a worker's rank does, with a worker's segment and
pipe. This process reads the messages as a worker does. Only the callback's three hooks are timed,
so the network does not matter.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from optuna_deadline_lightning import DeadlineCallback
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measuring import Progress, Spread, machine, output_file, write_json
from optuna_deadline.rank.channel import Channel, channel_pair
from optuna_deadline.rank.link import Link
from optuna_deadline.rank.messages import Message
from optuna_deadline.rank.trial import RankSegment, RankTrial

HOOKS = ("on_train_batch_start", "on_before_backward", "on_train_batch_end")
TARGET_US = 50.0
_EPOCHS, _WARM_UP = 4, 20  # batches at the beginning that are not counted
_GONE = "the training process ended before it had measured anything"


class TimedCallback(DeadlineCallback):
    """The callback, with a timer in each hook that runs in every step."""

    def __init__(self, trial: Any) -> None:
        super().__init__(trial, monitor="val_loss", save_every=1e9)
        self.times: dict[str, list[float]] = {name: [] for name in HOOKS}

    def on_train_batch_start(self, *arguments: Any, **named: Any) -> None:
        """As in DeadlineCallback."""
        began = time.perf_counter()
        super().on_train_batch_start(*arguments, **named)
        self.times["on_train_batch_start"].append(time.perf_counter() - began)

    def on_before_backward(self, *arguments: Any, **named: Any) -> None:
        """As in DeadlineCallback."""
        began = time.perf_counter()
        super().on_before_backward(*arguments, **named)
        self.times["on_before_backward"].append(time.perf_counter() - began)

    def _batch_ended(self, trainer: pl.Trainer) -> None:
        """As in DeadlineCallback, after the module's ``on_train_batch_end``."""
        began = time.perf_counter()
        super()._batch_ended(trainer)
        self.times["on_train_batch_end"].append(time.perf_counter() - began)


class _Tiny(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.layer(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


@dataclass(frozen=True)
class Measured(Message):
    """The microseconds of each step in each hook."""

    times: dict[str, list[float]]


def measure(steps: int) -> dict[str, Any]:
    """Train for ``steps`` batches in a new process, and summarise the times of the hooks."""
    context = multiprocessing.get_context("spawn")
    here, there = channel_pair()
    with tempfile.TemporaryDirectory(prefix="step-cost-") as folder:
        arguments = (there, f"{folder}/trial", steps)  # whose parent is this user's alone
        process = context.Process(target=_rank, args=arguments, daemon=True)
        process.start()
        there.close()
        times = _hear(here)
        process.join(10)
        here.close()
    whole = [sum(parts) for parts in zip(*(times[name] for name in HOOKS), strict=True)]
    return {
        "step_us": asdict(Spread.of(whole)),
        "hooks_us": {name: asdict(Spread.of(times[name])) for name in HOOKS},
        "mean_step_us": sum(whole) / len(whole),
        "target_us": TARGET_US,
        "steps": len(whole),
        "machine": machine("torch", "lightning"),
    }


def _hear(raw: Any) -> dict[str, list[float]]:
    while True:
        try:
            message = raw.recv()
        except EOFError:
            raise RuntimeError(_GONE) from None
        if isinstance(message, Measured):
            return message.times


def _rank(raw: Channel, folder: str, steps: int) -> None:
    os.environ.update(
        RANK="0", LOCAL_RANK="0", NODE_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1"
    )
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module=r"lightning\..*")  # about data loaders
    link = Link(raw, time.monotonic() + 3600, grace=0.0)
    segment = RankSegment(
        link,
        rank=0,
        world_size=1,
        fence=1,
        folder=Path(folder),
        resume=None,
        direction="minimize",
    )
    timed = TimedCallback(RankTrial(link, segment, number=0))
    batches = -(-(steps + _WARM_UP) // _EPOCHS)
    x = torch.randn(4 * batches, 8)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    trainer = pl.Trainer(
        max_epochs=_EPOCHS,
        callbacks=[timed],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **timed.trainer_options(),
    )
    loader = DataLoader(data, batch_size=4, shuffle=True)
    trainer.fit(_Tiny(), loader, DataLoader(TensorDataset(*data[:8]), batch_size=8))
    kept = slice(_WARM_UP, _WARM_UP + steps)
    link.send(Measured({name: [t * 1e6 for t in timed.times[name][kept]] for name in HOOKS}))


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.step_cost", description=__doc__)
    parser.add_argument(
        "--json", type=output_file, metavar="FILE", help="where to write all figures"
    )
    parser.add_argument("--steps", type=int, default=4_000, help="training steps to time")
    given = parser.parse_args(arguments)
    progress = Progress()
    progress.write_progress(f"training for {given.steps} steps")
    try:
        result = measure(given.steps)
    finally:
        progress.end()
    print(f"{'microseconds per step':22}{'median':>9}{'(10-90 %)':>17}")
    for name, spread in (*result["hooks_us"].items(), ("together", result["step_us"])):
        print(f"{name:22}{spread['median']:9.1f}{spread['p10']:8.1f} -{spread['p90']:7.1f}")
    print(f"mean: {result['mean_step_us']:.1f} (target: {TARGET_US:g})")
    write_json(given.json, result)


if __name__ == "__main__":
    main()
