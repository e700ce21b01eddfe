"""What users of ``Trainer`` keep in callbacks, subclasses, global variables and data, by name."""

from __future__ import annotations

import copy
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tiny_bert import Sums
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import WeightedRandomSampler
from transformers import Trainer, TrainerCallback

COUNTS = {"steps": 0}


class Moving(TrainerCallback):
    """Moves a parameter after each step by what it keeps."""

    def move(self) -> float:
        raise NotImplementedError

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        with torch.no_grad():
            next(model.parameters()).add_(0.001 * self.move())


class Tensor(Moving):
    def __init__(self) -> None:
        self.mean = torch.zeros(())

    def move(self) -> float:
        self.mean = self.mean * 0.9 + 1.0
        return float(self.mean)


class Containers(Moving):
    def __init__(self) -> None:
        self.last: deque[int] = deque(maxlen=3)
        self.counts: dict[str, int] = defaultdict(int)

    def move(self) -> float:
        self.counts["steps"] += 1
        self.last.append(self.counts["steps"])
        return sum(self.last)


class Count:
    steps = 0


class Object(Moving):
    def __init__(self) -> None:
        self.count = Count()

    def move(self) -> float:
        self.count.steps += 1
        return self.count.steps


class Global(Moving):
    def __init__(self) -> None:
        COUNTS["steps"] = 0

    def move(self) -> float:
        COUNTS["steps"] += 1
        return COUNTS["steps"]


class Draws(Moving):
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.generator = torch.Generator().manual_seed(0)

    def move(self) -> float:
        return self.rng.random() + float(torch.rand((), generator=self.generator))


class Sampled(Trainer):
    """Draws more of the later samples."""

    def _get_train_sampler(self, *_: Any) -> WeightedRandomSampler:
        own = torch.Generator().manual_seed(3)
        return WeightedRandomSampler(torch.arange(64.0) + 1, 64, generator=own)


class Average(TrainerCallback):
    """Trains each epoch from the average of the weights so far."""

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        self.average = AveragedModel(model)

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        self.average.update_parameters(model)

    def on_epoch_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        model.load_state_dict(self.average.module.state_dict())


class Logged(Moving):
    """Moves by the loss that was logged last."""

    loss = 0.0

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.loss = logs.get("loss", self.loss)

    def move(self) -> float:
        return self.loss


class Clipping(TrainerCallback):
    """Clips gradients more and more."""

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        args.max_grad_norm *= 0.1


class Cutting(TrainerCallback):
    """Ends the first epoch early."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_epoch_stop |= state.global_step == 3


class SlowStart(TrainerCallback):
    """Makes each epoch's first step a small one."""

    def on_epoch_begin(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any
    ) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= 0.5


class Distilling(Trainer):
    """Learns from a model that follows the trained one slowly."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.teacher = copy.deepcopy(self.model).eval()

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        out = model(**inputs)
        with torch.no_grad():
            wanted = self.teacher(**inputs).logits
        loss = out.loss + (out.logits - wanted).square().mean()
        if model.training:
            with torch.no_grad():
                for old, new in zip(self.teacher.parameters(), model.parameters(), strict=True):
                    old.lerp_(new, 0.05)
        return (loss, out) if return_outputs else loss


class Tempered(Trainer):
    """Trains a parameter beside the model."""

    def create_optimizer(self, *args: Any) -> Any:
        self.temperature = nn.Parameter(torch.ones(()))
        made = super().create_optimizer(*args)
        made.add_param_group({"params": [self.temperature]})
        return made


class Epochs(Sums):
    """Samples that depend on the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        return {**sample, "input_ids": (torch.as_tensor(sample["input_ids"]) + self.epoch) % 50}


class Reads(Sums):
    """Samples that depend on how many were read."""

    reads = 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.reads += 1
        sample = super().__getitem__(index)
        moved = (torch.as_tensor(sample["input_ids"]) + self.reads // 16) % 50
        return {**sample, "input_ids": moved}


KEPT: dict[str, Callable[[], dict[str, Any]]] = {
    "a tensor": lambda: {"callbacks": [Tensor()]},
    "containers": lambda: {"callbacks": [Containers()]},
    "an object": lambda: {"callbacks": [Object()]},
    "a global variable": lambda: {"callbacks": [Global()]},
    "random generators": lambda: {"callbacks": [Draws()]},
    "an AveragedModel": lambda: {"callbacks": [Average()]},
    "a logged loss": lambda: {
        "callbacks": [Logged()], "logging_strategy": "steps", "logging_steps": 5,
    },
    "an argument of the training": lambda: {"callbacks": [Clipping()], "max_grad_norm": 0.1},
    "a rate that is set at an epoch's start": lambda: {"callbacks": [SlowStart()]},
    "a teacher": lambda: {"trainer": Distilling},
    "a sampler with a generator of its own": lambda: {"trainer": Sampled},
    "data with set_epoch": lambda: {"data": Epochs},
    "data with set_epoch, without a seedable sampler": lambda: {
        "data": Epochs, "accelerator_config": {"use_seedable_sampler": False},
    },
}  # fmt: skip
