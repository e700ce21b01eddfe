"""A training that logs means, sums and metrics of its epochs."""

from __future__ import annotations

from functools import partial
from typing import Any

import elastic_training
import torch
from elastic_harness import Plan
from torch import nn
from torchmetrics import (
    CatMetric,
    MaxMetric,
    MeanMetric,
    MetricCollection,
    PearsonCorrCoef,
    SumMetric,
)
from torchmetrics.classification import (
    BinaryPrecision,
    BinaryRecall,
    MulticlassAccuracy,
    MulticlassConfusionMatrix,
)


class Logging(elastic_training.Net):
    def __init__(self, plan: Plan, seen: dict[str, Any], segment: Any = None) -> None:
        super().__init__(plan, seen, segment)
        self.accuracy = MulticlassAccuracy(2)
        self.worst, self.mean = MaxMetric(), MeanMetric()
        self.samples = CatMetric()  # of an epoch, neither logged nor reset by Lightning
        self.total = SumMetric()  # of all epochs
        self.both = MetricCollection([BinaryPrecision(), BinaryRecall()])
        self.errors = SumMetric()  # of a validation
        self.confusion = MulticlassConfusionMatrix(2)  # of one, computed by hand
        self.validated = SumMetric()  # samples of all validations
        if "pearson" in plan.extras:
            self.pearson = PearsonCorrCoef()
        seen["means"] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        x, y, ids = batch
        score = self.body(x.to(self.dtype)).detach()
        each = nn.functional.cross_entropy(score, y, reduction="none")
        self.log("loss", loss, on_step=True, on_epoch=True)  # as on one device
        synced = partial(self.log, on_step=False, on_epoch=True, sync_dist=True)
        synced("synced", loss)
        synced("summed", each.sum(), reduce_fx="sum")
        self.log("unsynced", each.sum(), on_step=False, on_epoch=True, reduce_fx="sum")
        self.log("most", each.max(), on_step=False, on_epoch=True, reduce_fx="max")
        synced("largest", each.max(), reduce_fx="max")
        synced("smallest", each.min(), reduce_fx="min")
        if batch_idx == 0:
            synced("first", each.mean())
        self.accuracy(score, y)
        self.worst(each)
        self.mean(each)
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        self.log("worst", self.worst, on_step=False, on_epoch=True)
        self.log("mean", self.mean, on_step=True, on_epoch=True)
        self.both(score.argmax(1), y)
        self.log_dict(self.both, on_step=False, on_epoch=True)
        if "pearson" in self.plan.extras:
            self.pearson(score[:, 1], y.double())
            self.log("pearson", self.pearson, on_step=False, on_epoch=True)
        self.samples(ids)
        self.total(torch.ones(len(ids)))
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        x, y, _ = batch
        wrong = self.body(x.to(self.dtype)).argmax(1) != y
        self.errors(wrong)
        self.log("val_errors", self.errors)
        self.log("val_sum", wrong.double().sum(), reduce_fx="sum", sync_dist=True)
        self.log("val_gathered", self.all_gather(wrong).double().sum(), reduce_fx="sum")  # type: ignore[union-attr, operator]
        if "by hand" in self.plan.extras and torch.distributed.is_initialized():
            torch.distributed.all_reduce(wrong.double().sum())
        self.confusion.update(self.body(x.to(self.dtype)), y)
        if not self.trainer.sanity_checking:
            self.validated.update(torch.ones(len(y)))

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        self.log("val_correct", self.confusion.compute().trace().double())
        self.confusion.reset()
        self.log("accuracy so far", self.accuracy.compute())

    def on_train_epoch_end(self) -> None:
        found = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
        del found["loss_step"], found["mean_step"]  # of a rank's own slice
        found["total"] = float(self.total.compute())
        found["validated"] = float(self.validated.compute())
        found["samples"] = sorted(self.samples.compute().tolist())  # type: ignore[assignment]
        self.samples.reset()
        self.seen["means"].append(found)


train = partial(elastic_training.train, net=Logging)
