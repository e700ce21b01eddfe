"""Loops as users write them, by name: each changes one thing of a small training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import elastic_data
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
    StackDataset,
    Subset,
    TensorDataset,
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


# ---- losses


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


@named("one cycle")
class OneCycle(Training):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.schedule = lr_scheduler.OneCycleLR(self.optimizer, 0.3, total_steps=21)
        self.also["schedule"] = self.schedule

    def step(self, loop: ElasticLoop, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = super().step(loop, x, y)
        self.schedule.step()
        return loss


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
