"""Objectives that a check tells apart: exact ones, silently different ones, and refused ones."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from optuna_deadline_torch import ElasticLoop
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from optuna_deadline import resumable


def data() -> TensorDataset:
    """Of 100 samples."""
    x = torch.randn(100, 8, generator=torch.Generator().manual_seed(5))
    return TensorDataset(x, (x[:, :3].sum(1) > 0).long())


def train(
    trial: Any,
    dataset: Dataset[Any],
    loss_of: Callable[..., torch.Tensor] = nn.functional.cross_entropy,
    dtype: torch.dtype = torch.float32,
    autocast: bool = False,
    **options: Any,
) -> float:
    """Two epochs of five steps."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), trial.suggest_float("lr", 0.01, 0.1))
    loop = ElasticLoop(trial, model, optimizer, epochs=2, **options)
    loader = DataLoader(dataset, 20, shuffle=not isinstance(dataset, IterableDataset))
    x, y = data().tensors
    for _ in loop.epochs():
        for inputs, labels in loop.batches(loader):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = loss_of(loop.model(inputs.to(dtype)), labels)
            loop.backward(loss)
            optimizer.step()
        with torch.no_grad():
            loop.report(float(nn.functional.cross_entropy(model(x.to(dtype)), y)))
    return loop.result()


def exact(trial: Any) -> float:
    """As the guide has it."""
    return train(trial, data())


def halved(trial: Any) -> float:
    """Its weights have 8 bits of a mantissa."""
    return train(trial, data(), dtype=torch.bfloat16)


def mixed(trial: Any) -> float:
    """Its weights are single, and its activations have 8 bits of a mantissa."""
    return train(trial, data(), autocast=True)


def scaled(trial: Any) -> float:
    """Its batch grows with its slots."""
    return train(trial, data(), scaling="sqrt")


def endless(trial: Any) -> float:
    """Saves at each step, beside a process of its own; says by a file that it does."""
    beside = subprocess.Popen(["sleep", "1000"])
    for step in range(1_000_000):
        trial.segment.progress(step / 1000)
        trial.segment.save(lambda path: path.write_bytes(b"state"), step=step)
        if step == 20:
            mark = Path(os.environ["MARK"])
            mark.with_suffix(".new").write_text(f"{os.getpid()} {beside.pid}")
            mark.with_suffix(".new").rename(mark)
        if trial.segment.directive().leave:
            trial.segment.leave()
    return 0.0


class Count:
    """Something that lasts longer than a step, and that no checkpoint holds."""

    steps = 0


def forgetful(trial: Any, **options: Any) -> float:
    """Its loss depends on how many steps this process has made."""
    count = Count()

    def weighed(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        count.steps += 1
        return nn.functional.cross_entropy(outputs, labels) / count.steps

    return train(trial, data(), weighed, **options)


def mixed_forgetful(trial: Any) -> float:
    """The same with 8 bits of a mantissa."""
    return forgetful(trial, autocast=True)


class Stream(IterableDataset[Any]):
    """Samples one after another."""

    def __iter__(self) -> Iterator[Any]:
        return iter(data())


def streamed(trial: Any) -> float:
    """Its data cannot be distributed to slots."""
    return train(trial, Stream())


def checked(trial: Any) -> float:
    """Checked in the study's first trial, which cannot have two slots."""
    return train(trial, Stream(), check=True)


def dropout(trial: Any) -> float:
    """A move draws other random numbers."""

    def dropped(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(nn.functional.dropout(outputs, 0.5), labels)

    return train(trial, data(), dropped)


def of_arrays(trial: Any) -> float:
    weights, draws = np.zeros(3), np.random.default_rng(1)
    training = resumable(trial, steps=8, state={"weights": weights, "draws": draws})
    for step in training:
        weights += draws.normal(size=3) + np.random.rand()
        step.report(float(weights.sum()))
    return training.result()


def plain(trial: Any) -> float:
    """Knows nothing of segments."""
    for step in range(1_000_000):
        trial.report(1.0 / (step + 1), step)
    return 0.0


def failing(trial: Any) -> float:
    """Raises at once."""
    missing: dict[str, float] = {}
    return missing["lr"]


def unsaved(trial: Any) -> float:
    """Leaves, and saves nothing."""
    for step in range(100):
        trial.segment.progress(step / 10)
        if trial.segment.directive().leave:
            trial.segment.leave()
    return 0.0
