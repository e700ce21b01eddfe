"""A small training in plain PyTorch whose every step leaves a trace."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import elastic_data
import torch
from elastic_harness import Plan
from elastic_training import data
from optuna_deadline_torch import ElasticLoop
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Subset


def net(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(11)
    return nn.Sequential(
        nn.Linear(8, 12), nn.Tanh(), nn.Dropout(dropout), nn.Linear(12, 2)
    ).double()


def scheduler_for(name: str, optimizer: Any) -> Any:
    if name == "plateau":
        return lr_scheduler.ReduceLROnPlateau(optimizer, "max", 0.5, patience=0)
    if name == "plateau of losses":
        return lr_scheduler.ReduceLROnPlateau(optimizer, "min", 0.5, patience=0)
    if name == "epoch":
        return lr_scheduler.ExponentialLR(optimizer, 0.7)
    return lr_scheduler.CosineAnnealingLR(optimizer, 40)


def train(plan: Plan, trial: Any, segment: Any, seen: dict[str, Any]) -> float:
    """A user's loop; ``segment`` gets the step, for its script."""
    training, validation = data(plan.samples)
    model = net(plan.dropout)
    if plan.optimizer == "adam":
        optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.02)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = scheduler_for(plan.schedule, optimizer)
    elastic_data.seed_anew()
    loop = ElasticLoop(
        trial,
        model,
        optimizer,
        epochs=plan.epochs,
        save_every=plan.save_every,
        scheduler=scheduler,
        scaling=plan.scaling or None,  # type: ignore[arg-type]
        reports_per_epoch=plan.reports,
    )
    step_scheduler = partial(loop.advance, scheduler) if plan.scaling else scheduler.step
    seen["rates"] = []  # of each step, in it
    optimizer.register_step_pre_hook(
        lambda *_: seen["rates"].append(optimizer.param_groups[0]["lr"])
    )
    loader = DataLoader(training, plan.batch, shuffle=True, num_workers=plan.workers)
    loader = elastic_data.source(plan, loader, training, segment)
    several = [loader]
    if plan.data == "beside":  # one that begins again within an epoch, one that is longer
        shorter = Subset(training, range(0, plan.samples, 2))
        several += [DataLoader(shorter, 12, shuffle=True), DataLoader(training, 4, shuffle=True)]
    if plan.data == "zipped":
        beside = DataLoader(training, plan.batch, shuffle=True)
    accumulate = plan.trainer.get("accumulate_grad_batches", 1)
    seen.update(steps=[], draws=[], measured=[])
    if "measured" in plan.extras:
        from torchmetrics import SumMetric

        trained, errors = SumMetric(), SumMetric()
    x_held, y_held, _ = validation[:]

    def evaluate() -> float:
        model.eval()
        with torch.no_grad():
            right = model(x_held).argmax(1) == y_held
            value = float(right.double().mean())
        if "measured" in plan.extras:
            errors.reset()
            errors.update(~right)
            value = float(errors.compute())
        model.train()
        seen["draws"].append(float(torch.rand(1)))
        return value

    for epoch in loop.epochs():
        batches = loop.batches(*several)
        for batch in zip(batches, beside) if plan.data == "zipped" else batches:  # noqa: B905
            x, y, ids = elastic_data.triple(batch)
            kept = seen["steps"]
            kept.append(
                {
                    "step": loop.steps,
                    "epoch": epoch,
                    "batch": loop.batch,
                    "lr": optimizer.param_groups[0]["lr"],
                    "ids": ids.tolist(),
                    "weight": loop._weight,
                }
            )
            if plan.term_rank == loop.segment.rank and loop.steps + 1 == plan.leave_at:
                os.kill(os.getpid(), signal.SIGTERM)
            score = model(x) if "beside" in plan.extras else loop.model(x)
            loss = nn.functional.cross_entropy(score, y)
            loop.backward(loss / accumulate)
            if (loop.batch + 1) % accumulate == 0 or loop.batch + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
                if plan.schedule == "cosine":
                    step_scheduler()
                elif plan.schedule == "plateau of losses":
                    scheduler.step(loss)
            segment.step = loop.steps
            if "measured" in plan.extras:
                trained.update(ids)
            if plan.reports > 1 and loop.report_due:
                loop.report(evaluate())
        if "measured" in plan.extras:
            seen["measured"].append(float(trained.compute()))
            trained.reset()
        if plan.reports == 1:
            loop.report(value := evaluate())
        if plan.schedule == "plateau":
            scheduler.step(value)
        elif plan.schedule == "epoch":
            step_scheduler()
    seen["metrics"], seen["global_step"] = {"val_acc": loop.result()}, loop.steps
    if loop.segment.rank == 0:
        torch.save(model.state_dict(), Path(plan.folder) / "final.pt")
    return loop.result()
