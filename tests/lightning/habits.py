"""What users of Lightning do, by the names that the guide's table has for it."""

from __future__ import annotations

import math
from typing import Any

from elastic_harness import Plan
from verdicts import Habit

UNUSED = {"strategy": "ddp_find_unused_parameters_true"}


def habit(
    words: str = "",
    *,
    each: bool = False,
    near: float = math.inf,
    shifts: bool = False,
    late: bool = False,
    **changes: Any,
) -> Habit:
    """Of 7 batches in an epoch, of which the last has 4 samples."""
    defaults = {"training": "elastic_nets", "samples": 100, "optimizer": "sgd"}
    return Habit(Plan("", **{**defaults, **changes}), words, each, near, shifts, late)


def trained(words: str = "", *, each: bool = False, **trainer: Any) -> Habit:
    """With an argument of the trainer."""
    return habit(words, each=each, trainer=trainer)


DATA = {
    "DataLoader(shuffle=True)": habit(),
    "a batch_size that the slots do not divide": habit(batch=33),
    "drop_last=True": habit(batch=17, drop_last=True),
    "num_workers=2, persistent_workers=True": habit(data="persistent"),
    "DataLoader(generator=...)": habit(data="generator"),
    "WeightedRandomSampler": habit(data="weighted"),
    "a batch sampler with set_epoch, such as buckets": habit(data="buckets"),
    "a batch sampler without __len__": habit(data="unmeasured"),
    "a sampler with a generator of its own": habit("draws another order", data="own order"),
    "a sampler that counts epochs itself": habit("draws another order", data="own epochs"),
    "an endless sampler with limit_train_batches=7": habit(
        data="endless", trainer={"limit_train_batches": 7}
    ),
    "an endless sampler with max_steps=9": habit(
        "limit_train_batches=N", data="endless", trainer={"max_steps": 9}
    ),
    "DistributedSampler": habit("leave it out", data="distributed"),
    "batch_size // world_size": habit("the batch size of the whole step", data="divided"),
    "an order that differs between slots": habit(
        "another order in each", data="other in each slot"
    ),
    "a DataLoader whose __iter__ changes batches": habit(data="prefetching"),
    "a DataLoader whose __iter__ reads another one": habit(
        "without asking its batch_sampler", data="wrapping"
    ),
    "timm's MultiEpochsDataLoader": habit("persistent_workers=True", data="keeps its iterator"),
    "batch_size=None with batches as indices": habit("cannot be dealt", data="batched"),
    "IterableDataset": habit("cannot be dealt", data="stream"),
    "IterableDataset that shuffles": habit("cannot be dealt", data="shuffled stream"),
    "StatefulDataLoader over a map-style dataset": habit(data="resuming"),
    "a loader with state_dict": habit("cannot be dealt", data="stateful", each=True),
    "a dict of loaders": habit(data="dict of two", each=True),
    "CombinedLoader": habit(data="combined min_size"),
    "a dict of loaders with slices of other lengths": habit(
        "are not shared alike", data="two, uneven"
    ),
    "an IterableDataset beside another loader": habit(
        "cannot be dealt", data="list with a stream", shifts=True
    ),
    "limit_train_batches=0.5": trained(limit_train_batches=0.5),
    "overfit_batches=3": trained("pass limit_train_batches=N", overfit_batches=3),
}

RANDOMNESS = {
    "random_split without a generator": habit(data="random split"),
    "dropout": habit("Dropout", dropout=0.5),
    "augmentation in a dataset": habit("drawn at random", data="read at random"),
    "augmentation in a dataset, num_workers=2": habit(
        "drawn at random", data="read at random by workers"
    ),
    "augmentation in collate_fn": habit("drawn at random", data="collated at random"),
    "augmentation in on_after_batch_transfer": habit("drawn at random", net="transfer"),
    "augmentation in training_step": habit("drawn at random", net="noise"),
    "a dataset with a generator of its own": habit("drawn at random", data="own generator"),
    "a generator in a global variable": habit("begins anew", data="global generator"),
}

STEPS = {
    "Adam": habit(optimizer="adam"),
    "accumulate_grad_batches=3": trained(accumulate_grad_batches=3),
    "gradient_clip_val=0.1": trained(gradient_clip_val=0.1),
    "LBFGS": habit(net="lbfgs"),
    "manual optimization": habit(net="manual"),
    "loss.backward() in place of manual_backward": habit("manual_backward", net="loss.backward"),
    "two optimizers in turn, as in a GAN": habit(net="adversarial", options=UNUSED),
    "two optimizers, one of which accumulates": habit(net="two", each=True),
    "OneCycleLR over estimated_stepping_batches": habit(net="one cycle"),
    "a scheduler stepped in a hook of the module": habit(net="schedule in a hook"),
    "a scheduler of epochs": habit(schedule="epoch", epochs=4, each=True),
    "ReduceLROnPlateau on a validation metric": habit(schedule="plateau", epochs=4, each=True),
    "ReduceLROnPlateau on an epoch's training loss": habit(net="plateau of the epoch", epochs=5),
    "ReduceLROnPlateau on a step's training loss": habit(
        "ReduceLROnPlateau", net="plateau of the step"
    ),
    "a loss that is a mean": habit(batch=15),
    "a summed loss": habit("no mean", net="summed"),
    "class weights in the loss": habit("no mean", net="class weights"),
    "ignore_index": habit("no mean", net="ignore_index"),
    "a contrastive loss within the batch": habit("no mean", net="contrastive"),
    'precision="bf16-mixed"': habit(
        "in few digits", near=0.05, single=True, trainer={"precision": "bf16-mixed"}
    ),
    'precision="bf16-true"': habit(
        "in few digits", near=0.05, single=True, trainer={"precision": "bf16-true"}
    ),
    'precision="16-mixed"': habit("in few digits", near=0.05, single=True, extras=("scaler",)),
}

METRICS = {
    "self.log(..., on_epoch=True), torchmetrics": habit(net="metrics", batch=15, each=True),
    "a metric that averages losses": habit("unweighted", net="averaged loss", batch=15, late=True),
    "PearsonCorrCoef in training": habit("in a way of its own", net="pearson"),
    "a list that the module collects": habit("begins anew", net="list"),
    "torchmetrics in validation": habit(net="validation metrics", monitor="watched"),
    "SumMetric as monitor": habit(net="SumMetric", monitor="watched", direction="minimize"),
    "counts of a confusion matrix as monitor": habit(net="confusion counts", monitor="watched"),
    'reduce_fx="sum", sync_dist=True as monitor': habit(
        net="summed over devices", monitor="watched", direction="minimize"
    ),
    "val_check_interval=0.25": trained(val_check_interval=0.25),
    "check_val_every_n_epoch=2, reload_dataloaders_every_n_epochs=1": trained(
        check_val_every_n_epoch=2, reload_dataloaders_every_n_epochs=1
    ),
    "max_steps=17 without max_epochs": trained(max_epochs=-1, max_steps=17),
}

CALLBACKS = {
    "EarlyStopping on a validation metric": habit(epochs=6, patience=1, each=True),
    "EarlyStopping, ModelCheckpoint on an epoch's mean": habit(
        net="plateau of the epoch", epochs=12, extras=("stop by mean", "best mean"), each=True
    ),
    "ModelCheckpoint": habit(extras=("best", "every"), each=True),
    "EMAWeightAveraging": habit(extras=("ema",), each=True),
    "StochasticWeightAveraging": habit(epochs=6, extras=("swa",), each=True),
    "StochasticWeightAveraging with BatchNorm": habit(
        "a slot's slice of it", epochs=5, norm=True, extras=("swa",), each=True
    ),
    "GradientAccumulationScheduler": habit(epochs=4, extras=("accumulation",), each=True),
    "a callback with state_dict": habit(extras=("counting",), each=True),
    "what the module does in its own hooks": habit(net="hooks", each=True),
    "LearningRateFinder": habit(schedule="", extras=("find",), each=True),
    "BatchSizeFinder": habit("atch size finder", extras=("find batch",)),
}

MODELS = {
    "BatchNorm": habit("a slot's slice of it", norm=True),
    "BatchNorm, sync_batchnorm=True on CPU": habit(
        "SyncBatchNorm", norm=True, trainer={"sync_batchnorm": True}
    ),
    "BatchNorm with one sample of a batch in a slot": habit(
        "more than 1 value per channel", norm=True, samples=98
    ),
    "parameters that the loss does not use": habit("parameters that were not used", net="unused"),
    "the same with ddp_find_unused_parameters_true": habit(net="unused", options=UNUSED),
    "FSDP": habit("shards the model", options={"strategy": "fsdp"}),
    "DeepSpeed": habit("shards the model", options={"strategy": "deepspeed"}),
    "torch.compile of a part": habit(net="compiled part", epochs=1),
}

HABITS = DATA | RANDOMNESS | STEPS | METRICS | CALLBACKS | MODELS
