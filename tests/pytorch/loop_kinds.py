"""Loops as users write them, by name: each changes one thing of a small training."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import elastic_data
import numpy as np
import torch
from elastic_harness import Plan
from elastic_training import data
from optuna_deadline_torch import ElasticLoop
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    StackDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

from optuna_deadline.rank.process import seed_by_trial


class Training:
    """A plain loop with one optimizer."""

    def __init__(self, plan: Plan, segment: Any) -> None:
        self.plan, self.segment = plan, segment
        self.samples, self.held = data(plan.samples)
        torch.manual_seed(11)
        self.model = self.net().double()
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.also: dict[str, Any] = {}
        self.losses: list[float] = []  # of an epoch

    def net(self) -> nn.Module:
        norm = [nn.BatchNorm1d(12)] if self.plan.norm else []
        drop = nn.Dropout(self.plan.dropout)
        return nn.Sequential(nn.Linear(8, 12), *norm, nn.Tanh(), drop, nn.Linear(12, 2))

    def loader(self) -> Any:
        loader = DataLoader(self.samples, self.plan.batch, shuffle=True)
        return elastic_data.source(self.plan, loader, self.samples, self.segment)

    def batches(self, loop: ElasticLoop, loader: Any) -> Iterator[Any]:
        return loop.batches(loader)

    def score(self, loop: ElasticLoop, x: torch.Tensor) -> torch.Tensor:
        score: torch.Tensor = loop.model(x)
        return score

    def loss(self, score: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(score, y)

    def step(self, loop: ElasticLoop, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = self.loss(self.score(loop, x), y)
        self.optimizer.zero_grad()
        loop.backward(loss)
        self.optimizer.step()
        return loss

    def end_epoch(self, loop: ElasticLoop, value: float) -> None:
        """A scheduler's place."""

    def evaluate(self) -> tuple[float, float]:
        x, y, _ = self.held[:]
        self.model.eval()
        with torch.no_grad():
            score = self.model(x)
        self.model.train()
        return float((score.argmax(1) == y).double().mean()), float(cross_entropy(score, y))

    def weights(self) -> dict[str, Any]:
        return self.model.state_dict()


KINDS: dict[str, type[Training]] = {"": Training}


def named(name: str) -> Any:
    def keep(kind: type[Training]) -> type[Training]:
        KINDS[name] = kind
        return kind

    return keep


def train(plan: Plan, trial: Any, segment: Any, seen: dict[str, Any]) -> None:
    seed_by_trial(trial.number)  # as the rank of a worker does
    mine = KINDS[plan.net](plan, segment)
    elastic_data.seed_anew()
    loop = ElasticLoop(
        trial, mine.model, mine.optimizer, epochs=plan.epochs, **plan.options, **mine.also
    )
    loader = mine.loader()
    seen.update(steps=[], epochs=[])
    for epoch in loop.epochs():
        mine.losses.clear()
        for x, y, ids in mine.batches(loop, loader):
            seen["steps"].append(
                {
                    "step": loop.steps,
                    "epoch": epoch,
                    "batch": loop.batch,
                    "lr": mine.optimizer.param_groups[0]["lr"],
                    "ids": ids.tolist(),
                    "weight": loop._weight,
                }
            )
            mine.losses.append(float(mine.step(loop, x, y).detach()))
            segment.step = loop.steps
        value, loss = mine.evaluate()
        mean = sum(mine.losses) / max(len(mine.losses), 1)
        seen["epochs"].append((epoch, {"loss": loss, "mean_step": mean}))
        loop.report(value)
        mine.end_epoch(loop, loss)
    seen["global_step"] = loop.steps
    if segment.rank == 0:
        torch.save(mine.weights(), Path(plan.folder) / "final.pt")


# ---- data and randomness


@named("random split")
class RandomSplit(Training):
    def __init__(self, plan: Plan, segment: Any) -> None:
        whole = ConcatDataset(data(plan.samples))
        samples, held = random_split(whole, [plan.samples, len(whole) - plan.samples])
        super().__init__(plan, segment)
        columns = (torch.stack(column) for column in zip(*held, strict=True))
        self.samples, self.held = samples, TensorDataset(*columns)  # type: ignore[assignment]


@named("noise")
class Noise(Training):
    """Augments in the loop's body."""

    def step(self, loop: ElasticLoop, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().step(loop, x + 0.1 * elastic_data.noise(), y)


@named("zip")
class Zipped(Training):
    """With a second loader that the loop does not know."""

    def batches(self, loop: ElasticLoop, loader: Any) -> Iterator[Any]:
        second = DataLoader(self.samples, self.plan.batch, shuffle=True)
        for (x, y, ids), (other, *_) in zip(loop.batches(loader), second, strict=False):
            yield x + 0.1 * other[: len(x)].mean(0), y, ids


@named("both")
class Both(Training):
    """With two loaders, of which one is begun again within an epoch."""

    def batches(self, loop: ElasticLoop, loader: Any) -> Iterator[Any]:
        second = DataLoader(Subset(self.samples, range(48)), self.plan.batch, shuffle=True)
        for (x, y, ids), (other, *_) in loop.batches(loader, second):
            yield x + 0.1 * other[: len(x)].square(), y, ids


@named("stacked")
class Stacked(Training):
    """With pairs of samples from one loader."""

    def loader(self) -> Any:
        return DataLoader(StackDataset(self.samples, self.samples), self.plan.batch, shuffle=True)

    def batches(self, loop: ElasticLoop, loader: Any) -> Iterator[Any]:
        for (x, y, ids), (other, *_) in loop.batches(loader):
            yield x + 0.1 * other.square(), y, ids


@named("break")
class Breaking(Training):
    """Ends each epoch after five batches."""

    def batches(self, loop: ElasticLoop, loader: Any) -> Iterator[Any]:
        for batch in loop.batches(loader):
            yield batch
            if loop.batch == 4:
                break


@named("enumerate")
class Enumerated(Training):
    """Counts batches by itself."""

    def batches(self, loop: ElasticLoop, loader: Any) -> Iterator[Any]:
        for number, (x, y, ids) in enumerate(loop.batches(loader)):
            yield x * (1 + 0.1 * number), y, ids


class Choosing(Training):
    def losses_of_all(self) -> torch.Tensor:
        x, y, _ = self.samples[:]
        with torch.no_grad():
            return cross_entropy(self.model(x), y, reduction="none")


@named("hardest")
class Hardest(Choosing):
    """Trains each epoch on the samples with the largest losses."""

    def batches(self, loop: ElasticLoop, loader: Any) -> Iterator[Any]:
        hardest = self.losses_of_all().topk(100).indices.tolist()
        return loop.batches(DataLoader(Subset(self.samples, hardest), 16, shuffle=True))


@named("weighted by loss")
class WeightedByLoss(Choosing):
    """Draws each epoch's samples by their losses."""

    def loader(self) -> Any:
        sampler = WeightedRandomSampler(self.losses_of_all().tolist(), len(self.samples))
        return DataLoader(self.samples, self.plan.batch, sampler=sampler)

    def batches(self, loop: ElasticLoop, loader: Any) -> Iterator[Any]:
        loader.sampler.weights = self.losses_of_all()
        return loop.batches(loader)


class CountsReads(Dataset[Any]):
    def __init__(self, data: Any) -> None:
        self.data, self.reads = data, 0

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        x, y, ids = self.data[index]
        return x * (1 + 0.001 * self.reads), y, ids


@named("reads")
class Reads(Training):
    def loader(self) -> Any:
        return DataLoader(CountsReads(self.samples), self.plan.batch, shuffle=True)


class Leveled(Dataset[Any]):
    def __init__(self, data: Any) -> None:
        self.data, self.level = data, 0

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        x, y, ids = self.data[index]
        return x * (1 + 0.1 * self.level), y, ids


@named("level")
class Level(Training):
    """Raises the difficulty of its data before the batches of each epoch."""

    def loader(self) -> Any:
        return DataLoader(Leveled(self.samples), self.plan.batch, shuffle=True)

    def batches(self, loop: ElasticLoop, loader: Any) -> Iterator[Any]:
        loader.dataset.level += 1
        return loop.batches(loader)


@named("drawn before")
class DrawnBefore(Training):
    """Draws, once the loop is made, from a generator that the loop is given."""

    def __init__(self, plan: Plan, segment: Any) -> None:
        super().__init__(plan, segment)
        self.also["own"] = torch.Generator().manual_seed(3)

    def loader(self) -> Any:
        self.shift = torch.rand(8, generator=self.also["own"], dtype=torch.float64)
        return super().loader()

    def step(self, loop: ElasticLoop, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        more = torch.rand(8, generator=self.also["own"], dtype=torch.float64)
        return super().step(loop, x + self.shift + 0.1 * more, y)


# ---- losses


@named("taught")
class Taught(Training):
    """Follows a copy of the model as it is before it is trained."""

    def loader(self) -> Any:
        self.teacher = copy.deepcopy(self.model).eval()
        return super().loader()

    def score(self, loop: ElasticLoop, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.target = self.teacher(x)
        return super().score(loop, x)

    def loss(self, score: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().loss(score, y) + (score - self.target).square().mean()


@named("model")
class BareModel(Training):
    def score(self, loop: ElasticLoop, x: torch.Tensor) -> torch.Tensor:
        score: torch.Tensor = self.model(x)
        return score


@named("loss.backward")
class BareBackward(Training):
    def step(self, loop: ElasticLoop, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = self.loss(self.score(loop, x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


@named("mean of losses")
class MeanOfLosses(Training):
    """Reports a sum that it keeps over an epoch's batches."""

    def evaluate(self) -> tuple[float, float]:
        mean = sum(self.losses) / max(len(self.losses), 1)
        return mean, mean


COUNTED = {"epochs": 0}


@named("global count")
class GlobalCount(Training):
    """Counts epochs in a global variable, by which it weighs its loss."""

    def batches(self, loop: ElasticLoop, loader: Any) -> Iterator[Any]:
        COUNTED["epochs"] += 1
        return loop.batches(loader)

    def loss(self, score: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().loss(score, y) * (1 + 0.1 * COUNTED["epochs"])


class Weighs:
    """Weighs a loss by a global variable."""

    def __call__(self, loss: torch.Tensor) -> torch.Tensor:
        COUNTED["epochs"] += 1
        return loss * (1 + 0.01 * COUNTED["epochs"])


@named("global count within")
class CountsWithin(Training):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.weighing = [Weighs()]

    def loss(self, score: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.weighing[0](super().loss(score, y))


@named("iterator")
class Iterates(Training):
    """Weighs each step's loss by what an iterator has next."""

    def loader(self) -> Any:
        self.weighs = itertools.cycle([1.0, 0.5, 0.8])
        return super().loader()

    def loss(self, score: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().loss(score, y) * next(self.weighs)


# ---- optimizers and schedules


@named("adam")
class Adam(Training):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)


@named("clip")
class Clipping(Training):
    def step(self, loop: ElasticLoop, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = self.loss(self.score(loop, x), y)
        self.optimizer.zero_grad()
        loop.backward(loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.optimizer.step()
        return loss


@named("accumulate")
class Accumulating(Training):
    def step(self, loop: ElasticLoop, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = self.loss(self.score(loop, x), y) / 3
        loop.backward(loss)
        if (loop.batch + 1) % 3 == 0 or loop.batch == 6:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss


@named("rate of NumPy")
class RateOfNumPy(Training):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=np.logspace(-2, -1, 3)[1])


@named("lbfgs")
class Lbfgs(Training):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.optimizer = torch.optim.LBFGS(self.model.parameters(), lr=0.1, max_iter=3)

    def step(self, loop: ElasticLoop, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = self.loss(self.score(loop, x), y)
            loop.backward(loss)
            return loss

        loss: torch.Tensor = self.optimizer.step(closure)
        return loss


@named("two")
class Two(Training):
    """Two optimizers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        first, second = self.model[0], self.model[-1]  # type: ignore[index]
        self.optimizer = torch.optim.SGD(first.parameters(), lr=0.1, momentum=0.9)
        self.second = torch.optim.Adam(second.parameters(), lr=0.02)
        self.also["second"] = self.second

    def step(self, loop: ElasticLoop, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = self.loss(self.score(loop, x), y)
        self.optimizer.zero_grad()
        self.second.zero_grad()
        loop.backward(loss)
        self.second.step()
        self.optimizer.step()
        return loss


@named("two, one accumulates")
class TwoPaces(Two):
    def step(self, loop: ElasticLoop, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = self.loss(self.score(loop, x), y)
        self.optimizer.zero_grad()
        loop.backward(loss)
        self.optimizer.step()
        if (loop.batch + 1) % 2 == 0 or loop.batch == 6:
            self.second.step()
            self.second.zero_grad()
        return loss


class Scheduled(Training):
    """With a schedule that steps after the optimizer."""

    schedule: Any

    def step(self, loop: ElasticLoop, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = super().step(loop, x, y)
        self.schedule.step()
        return loss


@named("one cycle")
class OneCycle(Scheduled):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.schedule = lr_scheduler.OneCycleLR(self.optimizer, 0.3, total_steps=21)
        self.also["schedule"] = self.schedule


@named("counted rate")
class CountedRate(Scheduled):
    """A schedule whose function counts its calls."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        calls = [0]

        def rate(_: int) -> float:
            calls[0] += 1
            return float(0.9 ** calls[0])

        self.also["schedule"] = self.schedule = lr_scheduler.LambdaLR(self.optimizer, rate)


@named("schedule unnamed")
class Unnamed(OneCycle):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.also.clear()


@named("plateau")
class Plateau(Training):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.schedule = lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=0, threshold=0.4)
        self.also["schedule"] = self.schedule

    def end_epoch(self, loop: ElasticLoop, value: float) -> None:
        self.schedule.step(value)


class Patience:
    """An early stopper, as users write it."""

    def __init__(self) -> None:
        self.best, self.bad = float("inf"), 0
        self.history: list[float] = []

    def update(self, value: float) -> None:
        self.history.append(value)
        self.bad += value > 0.7 * self.best
        self.best = min(self.best, value)


@named("patience")
class Patient(Training):
    """Lowers the rate by what an object without a ``state_dict`` has counted."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.also["patience"] = self.patience = Patience()

    def end_epoch(self, loop: ElasticLoop, value: float) -> None:
        self.patience.update(value)
        for group in self.optimizer.param_groups:
            group["lr"] = 0.05 / (1 + self.patience.bad + len(self.patience.history))


@named("plateau of the step")
class PlateauOfStep(Plateau):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.also["schedule"] = self.schedule = lr_scheduler.ReduceLROnPlateau(
            self.optimizer, patience=1, threshold=0.02
        )

    def step(self, loop: ElasticLoop, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = super().step(loop, x, y)
        self.schedule.step(float(loss.detach()))
        return loss

    def end_epoch(self, loop: ElasticLoop, value: float) -> None:
        """It has stepped."""


@named("average")
class Averaged(Training):
    """With an exponential average of the weights."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        averaging = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        self.average = torch.optim.swa_utils.AveragedModel(self.model, multi_avg_fn=averaging)
        self.also["average"] = self.average

    def step(self, loop: ElasticLoop, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = super().step(loop, x, y)
        self.average.update_parameters(self.model)
        return loss

    def weights(self) -> dict[str, Any]:
        return {**self.model.state_dict(), **self.average.state_dict(prefix="average.")}


# ---- models


@named("SyncBatchNorm")
class Synced(Training):
    def net(self) -> nn.Module:
        return nn.SyncBatchNorm.convert_sync_batchnorm(super().net())


@named("unused")
class Unused(Training):
    def net(self) -> nn.Module:
        net = super().net()
        net[0].head = nn.Linear(8, 2)  # type: ignore[index]
        return net


@named("wrapped")
class Wrapped(Training):
    def net(self) -> nn.Module:
        return nn.DataParallel(super().net())


@named("compiled part")
class CompiledPart(Training):
    def net(self) -> nn.Module:
        net = super().net()
        net[0] = torch.compile(net[0], backend="eager")  # type: ignore[index]
        return net


class Attributes(nn.Module):
    """Its attributes change with training, and are no part of its ``state_dict``."""

    def __init__(self, *, counts: bool, means: bool) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(8, 12), nn.Linear(12, 2)
        self.counts, self.means = counts, means
        self.scale, self.mean = 1.0, torch.zeros(12, dtype=torch.double)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.layer(x))
        if self.training and self.counts:
            self.scale *= 1.01
        if self.training and self.means:
            self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        score: torch.Tensor = self.head(hidden - self.mean) * self.scale
        return score


@named("count")
class Counting(Training):
    def net(self) -> nn.Module:
        return Attributes(counts=True, means=False)


@named("mean")
class RunningMean(Training):
    def net(self) -> nn.Module:
        return Attributes(counts=False, means=True)


class Beginning(Training):
    """Does something before the batches of its second epoch."""

    def batches(self, loop: ElasticLoop, loader: Any) -> Iterator[Any]:
        if loop.epoch == 1:
            self.begin()
        return loop.batches(loader)

    def begin(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.1


KINDS["lower"] = Beginning


@named("thaw")
class Thawing(Beginning):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.model[0].requires_grad_(False)  # type: ignore[index,operator]

    def begin(self) -> None:
        self.model[0].requires_grad_(True)  # type: ignore[index,operator]


@named("group")
class NewGroup(Beginning):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.optimizer = torch.optim.SGD(self.model[-1].parameters(), lr=0.1)  # type: ignore[index]

    def begin(self) -> None:
        if len(self.optimizer.param_groups) == 1:
            self.optimizer.add_param_group({"params": [*self.model[0].parameters()]})  # type: ignore[index]


@named("criterion")
class Criterion(Training):
    """Trains its loss too."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.criterion = nn.Linear(2, 2).double()
        trained = [*self.model.parameters(), *self.criterion.parameters()]
        self.optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)

    def loss(self, score: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.criterion(score), y)

    def weights(self) -> dict[str, Any]:
        return {**self.model.state_dict(), **self.criterion.state_dict(prefix="criterion.")}


@named("criterion, passed")
class PassedCriterion(Criterion):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.also["criterion"] = self.criterion
