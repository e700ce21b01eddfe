"""A ResNet-18 for small images, tuned to a deadline by four policies that share one device."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna_deadline_torch import ElasticLoop
from torch import nn
from torch.utils.data import DataLoader, Dataset

import optuna_deadline
from benchmarks.gpu_check.watching import Row, most_at_once, row, users_of_gpus
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.table import AllocationTable

POLICIES = ("adaptive_halving", "hypersched", "hermes", "shockwave")
_TINY = "OPTUNA_DEADLINE_GPU_CHECK_TINY"
_CLASSES = 10


class Images(Dataset[Any]):
    """Generated images of 32 x 32: a coarse pattern for each class, shifted, with much noise.

    Args:
        count: The number of images.
        seed: The seed of the noise; the patterns do not depend on it.
    """

    def __init__(self, count: int, seed: int) -> None:
        coarse = torch.randn(_CLASSES, 3, 6, 6, generator=torch.Generator().manual_seed(7))
        patterns = nn.functional.interpolate(coarse, size=40, mode="bilinear")
        generator = torch.Generator().manual_seed(seed)
        self.y = torch.randint(_CLASSES, (count,), generator=generator)
        moved = torch.randint(8, (count, 2), generator=generator).tolist()
        cut = [
            patterns[label, :, top : top + 32, left : left + 32]
            for label, (top, left) in zip(self.y.tolist(), moved, strict=True)
        ]
        self.x = torch.stack(cut)
        self.x += 2.0 * torch.randn(self.x.shape, generator=generator)

    def __len__(self) -> int:
        return len(self.y)

    def __getitems__(self, places: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a whole batch."""
        return self.x[places], self.y[places]


class Block(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        same = before == after and stride == 1
        self.around: nn.Module = nn.Identity() if same else nn.Conv2d(before, after, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of convolutions and shortcut."""
        return torch.relu(self.body(x) + self.around(x))


def resnet18(width: int = 64) -> nn.Module:
    """Four stages of two blocks, with a stem for small images."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    before = width
    for stage in range(4):
        after = width << stage
        layers += [Block(before, after, 1 + (stage > 0)), Block(after, after, 1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def objective(trial: Any) -> float:
    """Tune the learning rate, its momentum and the weight decay."""
    tiny = _TINY in os.environ
    training = Images(128 if tiny else 20000, seed=0)
    held = Images(64 if tiny else 4000, seed=1)
    torch.manual_seed(3)
    model = resnet18(2 if tiny else 64)
    optimizer = torch.optim.SGD(
        model.parameters(),
        trial.suggest_float("lr", 1e-3, 1.0, log=True),
        momentum=trial.suggest_float("momentum", 0.5, 0.99),
        weight_decay=trial.suggest_float("weight_decay", 1e-5, 1e-2, log=True),
    )
    epochs = 9
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    loader = DataLoader(training, 64 if tiny else 256, shuffle=True, collate_fn=_as_it_is)
    loop = ElasticLoop(trial, model, optimizer, epochs=epochs, scheduler=scheduler)
    kind = loop.device.type
    for _ in loop.epochs():
        model.train()
        for x, y in loop.batches(loader):
            optimizer.zero_grad()
            with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
                scores = loop.model(x.to(loop.device))
            loop.backward(nn.functional.cross_entropy(scores.float(), y.to(loop.device)))
            optimizer.step()
        scheduler.step()
        loop.report(_accuracy(model, held, loop.device))
    return loop.result()


def measure(folder: Path, *, gpu: int | None, seconds: float, tiny: bool) -> list[Row]:
    """Run a study under each policy, one after the other.

    Args:
        folder: The folder for databases and checkpoints.
        gpu: The index of the GPU; None for a CPU slot.
        seconds: The deadline of each study.
        tiny: Whether network and images are small, to test this script.
    """
    rows = []
    if tiny:
        os.environ[_TINY] = "1"
    for policy in POLICIES:
        here = folder / policy
        here.mkdir(parents=True)
        study = optuna.create_study(storage=f"sqlite:///{here}/study.db", direction="maximize")
        with users_of_gpus() as users:
            result = optuna_deadline.run(
                study,
                f"{__file__}:objective",
                deadline=f"{seconds:g}s",
                checkpoints=here,
                **{"cpus": 1} if gpu is None else {"gpu_ids": [gpu]},
                policy=f"{policy}:max_resource=9",
                worker=optuna_deadline.WorkerOptions(dashboard=False),
            )
        table = AllocationTable(open_table(study), study.study_name, study._study_id)
        segments = Counter(one.number for one in table.segments())
        most = most_at_once(users)
        good = result.checkpoint_ok and result.overshoot < 1.0
        figures = (
            f"{result.value if result.value is None else round(result.value, 3)}, "
            f"{len(study.trials)}, {sum(segments.values()) - len(segments)}, "
            f"{result.overshoot:+.2f} s, {most}"
        )
        rows.append(
            row(
                f"ResNet-18, {policy}: best accuracy, trials, resumes, past the deadline, at once",
                figures,
                good and (most or 0) <= 1,
            )
        )
    os.environ.pop(_TINY, None)
    return rows


def _as_it_is(batch: Any) -> Any:
    return batch


@torch.no_grad()
def _accuracy(model: nn.Module, held: Images, device: torch.device) -> float:
    model.eval()
    right = 0.0
    for first in range(0, len(held), 1000):
        x, y = held.x[first : first + 1000], held.y[first : first + 1000]
        right += float((model(x.to(device)).argmax(1).cpu() == y).sum())
    return right / len(held)
