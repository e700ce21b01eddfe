"""Modules as users write them, by name: each changes one thing of the small training."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import elastic_data
import elastic_training
import torch
from elastic_harness import Plan
from elastic_results import Logging
from elastic_training import Net
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.optim import lr_scheduler
from torchmetrics import MeanMetric, PearsonCorrCoef, SumMetric
from torchmetrics.classification import (
    BinaryAUROC,
    MulticlassAccuracy,
    MulticlassConfusionMatrix,
)

NETS: dict[str, type[Net]] = {"": Net, "metrics": Logging}


def named(name: str) -> Any:
    def keep(net: type[Net]) -> type[Net]:
        NETS[name] = net
        return net

    return keep


def train(plan: Plan, trial: Any, segment: Any, seen: dict[str, Any]) -> None:
    elastic_training.train(plan, trial, segment, seen, NETS[plan.net])


# ---- losses


@named("summed")
class Summed(Net):
    def loss(self, score: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(score, y, reduction="sum") / 16


@named("class weights")
class ClassWeights(Net):
    def loss(self, score: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(score, y, weight=torch.tensor([0.2, 3.0], dtype=score.dtype))


@named("ignore_index")
class Ignoring(Net):
    def loss(self, score: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        labelled = (torch.arange(len(y)) % 2 == 0) | (y == 1)
        return cross_entropy(score, torch.where(labelled, y, -100), ignore_index=-100)


@named("contrastive")
class Contrastive(Net):
    """Each sample against all others of its batch."""

    def loss(self, score: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        similar = normalize(score, dim=1) @ normalize(score, dim=1).T
        return cross_entropy(similar / 0.1, torch.arange(len(y)).flip(0))


# ---- hooks


@named("hooks")
class Hooks(Net):
    """What the module keeps up in hooks of its own."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.average = copy.deepcopy(self.body).requires_grad_(False)
        self.register_buffer("validations", torch.zeros(()))

    def on_train_batch_end(self, *_: Any) -> None:
        for mine, newest in zip(self.average.parameters(), self.body.parameters(), strict=True):
            mine.lerp_(newest.detach(), 0.1)

    def on_validation_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.validations += 1


@named("transfer")
class Transfer(Net):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x, y, ids = batch
        return (x + 0.1 * elastic_data.noise() if self.trainer.training else x), y, ids


@named("noise")
class Noise(Net):
    """Augments in its training step."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y, ids = batch
        return super().training_step((x + 0.1 * elastic_data.noise(), y, ids), batch_idx)


@named("list")
class Listing(Net):
    """Collects what it logs at the epoch's end."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.losses: list[torch.Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.losses.append(loss.detach())
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("mean_of_list", torch.stack(self.losses).mean())
        self.losses.clear()
        super().on_train_epoch_end()


# ---- manual optimization


class Manual(Net):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.descend(loss)
        if self.segment is not None:
            self.segment.step = self.trainer.global_step
        return loss

    def descend(self, loss: torch.Tensor) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.backpropagate(loss)
        self.clip_gradients(optimizer, 0.5, "norm")
        optimizer.step()
        self.advance()

    def backpropagate(self, loss: torch.Tensor) -> None:
        self.manual_backward(loss)

    def advance(self) -> None:
        schedule: Any = self.lr_schedulers()
        schedule.step()


NETS["manual"] = Manual


@named("loss.backward")
class RawBackward(Manual):
    def backpropagate(self, loss: torch.Tensor) -> None:
        loss.backward()


@named("schedule in a hook")
class SchedulesInHook(Manual):
    def advance(self) -> None:
        """Later."""

    def on_train_batch_end(self, *_: Any) -> None:
        super().advance()


@named("two")
class Two(Manual):
    """Two optimizers, of which the second steps with the gradients of three batches."""

    def descend(self, loss: torch.Tensor) -> None:
        first, second = self.optimizers()  # type: ignore[misc, union-attr]
        first.zero_grad()
        self.manual_backward(loss)
        first.step()
        if (self.trainer.fit_loop.total_batch_idx + 1) % 3 == 0:
            second.step()
            second.zero_grad()

    def configure_optimizers(self) -> Any:
        first, second = self.body[0], self.body[-1]
        return (
            torch.optim.SGD(first.parameters(), lr=0.1, momentum=0.9),
            torch.optim.SGD(second.parameters(), lr=0.1),
        )


@named("adversarial")
class Adversarial(Manual):
    """Two networks that are trained against each other in turn, as in a GAN."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.adversary = nn.Linear(8, 8).to(self.dtype)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, self.labels, ids = batch
        self.moved = x + 0.1 * self.adversary(x)
        return super().training_step((self.moved, self.labels, ids), batch_idx)

    def descend(self, loss: torch.Tensor) -> None:
        first, second = self.optimizers()  # type: ignore[misc, union-attr]
        self.toggle_optimizer(first)
        first.zero_grad()
        self.manual_backward(loss)
        first.step()
        self.untoggle_optimizer(first)
        self.toggle_optimizer(second)
        second.zero_grad()
        self.manual_backward(-self.adversary(self.moved.detach()).square().mean() / 100)
        second.step()
        self.untoggle_optimizer(second)

    def configure_optimizers(self) -> Any:
        return (
            torch.optim.SGD(self.body.parameters(), lr=0.1, momentum=0.9),
            torch.optim.SGD(self.adversary.parameters(), lr=0.05),
        )


# ---- optimizers and schedules


@named("lbfgs")
class Lbfgs(Net):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


@named("one cycle")
class OneCycle(Net):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Plateau(Net):
    """A learning rate that falls where what it watches does not."""

    watched: ClassVar[dict[str, Any]]

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        schedule = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.02)
        return [optimizer], [{"scheduler": schedule, **self.watched}]


@named("plateau of the epoch")
class PlateauOfEpoch(Plateau):
    watched: ClassVar[dict[str, Any]] = {"monitor": "loss_epoch"}


@named("plateau of the step")
class PlateauOfStep(Plateau):
    watched: ClassVar[dict[str, Any]] = {"monitor": "loss_step", "interval": "step"}


# ---- metrics


class Watching(Net):
    """Evaluates with a metric of its own."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        x, y, _ = batch
        self.watch(self.body(x.to(self.dtype)), y)


@named("validation metrics")
class Measuring(Watching):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.accuracy, self.area = MulticlassAccuracy(2), BinaryAUROC()

    def watch(self, score: torch.Tensor, y: torch.Tensor) -> None:
        self.accuracy(score, y)
        self.area(score.softmax(1)[:, 1], y)
        self.log("accuracy", self.accuracy)
        self.log("watched", self.area)


@named("SumMetric")
class Counting(Watching):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.errors = SumMetric()

    def watch(self, score: torch.Tensor, y: torch.Tensor) -> None:
        self.errors((score.argmax(1) != y).double().sum())
        self.log("watched", self.errors)


@named("confusion counts")
class Confusion(Watching):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.counts = MulticlassConfusionMatrix(2)

    def watch(self, score: torch.Tensor, y: torch.Tensor) -> None:
        self.counts(score, y)

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        self.log("watched", self.counts.compute()[1, 1].double())
        self.counts.reset()


@named("summed over devices")
class SummedOverDevices(Watching):
    def watch(self, score: torch.Tensor, y: torch.Tensor) -> None:
        errors = (score.argmax(1) != y).double().sum()
        self.log("watched", errors, reduce_fx="sum", sync_dist=True)


@named("averaged loss")
class AveragedLoss(Net):
    """Slices of unequal length count alike."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.mean = MeanMetric()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.mean(loss.detach())
        self.log("mean", self.mean, on_step=False, on_epoch=True)
        return loss


@named("pearson")
class Pearson(Net):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.pearson = PearsonCorrCoef()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y, _ = batch
        self.pearson(self.body(x)[:, 1].detach(), y.double())
        self.log("pearson", self.pearson, on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)


# ---- what ranks see of a batch


@named("unused")
class Unused(Net):
    """With parameters that its loss does not use."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.head = nn.Linear(8, 2).to(self.dtype)


@named("compiled part")
class CompiledPart(Net):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.body[0] = torch.compile(self.body[0], backend="eager")
