"""What users do in a loop of their own, by the names that the guide's table has for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from elastic_harness import Plan
from verdicts import Habit


def habit(
    words: str = "",
    *,
    each: bool = False,
    shifts: bool = False,
    late: bool = False,
    **changes: Any,
) -> Habit:
    """Of 7 batches in an epoch, of which the last has 4 samples."""
    plan = Plan("", training="loop_kinds", **{"samples": 100, **changes})
    return Habit(plan, words, each=each, shifts=shifts, late=late)


HABITS = {
    "DataLoader(shuffle=True)": habit(),
    "a batch_size that the slots do not divide": habit(batch=33),
    "num_workers=2, persistent_workers=True": habit(data="persistent"),
    "WeightedRandomSampler": habit(data="weighted"),
    "a batch sampler with set_epoch, such as buckets": habit(data="buckets"),
    "a sampler with a generator of its own": habit(data="own order"),
    "a sampler that counts epochs itself": habit("draws another order", data="own epochs"),
    "batch_size // world_size": habit("the batch size of the whole step", data="divided"),
    "IterableDataset": habit("cannot be distributed", data="stream"),
    "a loader with state_dict": habit("cannot be distributed", data="stateful"),
    "loop.batches(a, b)": habit(net="both"),
    "zip(loop.batches(a), b)": habit("loop.batches(a, b)", net="zip"),
    "StackDataset(a, b)": habit(net="stacked"),
    "a break out of loop.batches": habit(net="break"),
    "enumerate(loop.batches(loader))": habit("count by loop.batch", net="enumerate", each=True),
    "a Subset of the samples with the largest losses": habit(net="hardest", each=True),
    "a WeightedRandomSampler with weights from losses": habit(net="weighted by loss", each=True),
    "a dataset that counts its reads": habit("is of a slot's slice", net="reads", each=True),
    "a dataset with a level that each epoch raises": habit(net="level", epochs=4, each=True),
    "random_split without a generator": habit(net="random split"),
    "dropout": habit("Dropout", dropout=0.5),
    "augmentation in a dataset": habit("drawn at random", data="read at random"),
    "augmentation in a dataset, num_workers=2": habit(
        "drawn at random", data="read at random by workers"
    ),
    "augmentation in the loop's body": habit("drawn at random", net="noise"),
    "a dataset with a generator of its own": habit("drawn at random", data="own generator"),
    "numbers that are drawn after ElasticLoop(...)": habit(net="drawn before", each=True),
    "a generator in a global variable": habit("drawn at random", data="global generator"),
    "a loss that is a mean": habit(batch=15),
    "model(x) in place of loop.model(x)": habit("loop.model(x)", net="model"),
    "loss.backward() in place of loop.backward(loss)": habit(
        "Call loop.backward(loss)", net="loss.backward"
    ),
    "Adam": habit(net="adam"),
    "a LambdaLR whose function counts its calls": habit(net="counted rate", each=True),
    "a learning rate of NumPy": habit(net="rate of NumPy"),
    "LBFGS": replace(habit(net="lbfgs"), rounding=1e-9),  # its line search amplifies rounding
    "clip_grad_norm_": habit(net="clip"),
    "a step every three batches": habit(net="accumulate", each=True),
    "two optimizers": habit(net="two"),
    "two optimizers, one of which accumulates": habit(net="two, one accumulates", each=True),
    "OneCycleLR": habit(net="one cycle", each=True),
    "a scheduler that ElasticLoop is not given": habit(
        "is in no checkpoint", net="schedule unnamed", shifts=True
    ),
    "ReduceLROnPlateau on a validation metric": habit(net="plateau", epochs=4, each=True),
    "ReduceLROnPlateau on a step's training loss": habit(
        "ReduceLROnPlateau", net="plateau of the step"
    ),
    "AveragedModel": habit(net="average", each=True),
    "an object of one's own that counts, which ElasticLoop is given": habit(
        net="patience", epochs=4, each=True
    ),
    "a count in a global variable of the loop's file": habit(net="global count", each=True),
    "a count in a global variable that an object in a list counts": habit(
        net="global count within", each=True
    ),
    "an iterator that is made before the loop": habit("mine.weighs", net="iterator", late=True),
    "a mean of losses in a variable": habit("mine.losses", net="mean of losses", late=True),
    "BatchNorm": habit("a slot's slice of it", norm=True),
    "SyncBatchNorm on CPU": habit("SyncBatchNorm", net="SyncBatchNorm", norm=True),
    "BatchNorm with one sample of a batch in a slot": habit(
        "more than 1 value per channel", norm=True, samples=98
    ),
    "parameters that the loss does not use": habit("find_unused_parameters", net="unused"),
    "the same with find_unused_parameters": habit(
        net="unused", options={"ddp": {"find_unused_parameters": True}}
    ),
    "a model that is wrapped already": habit("wrapped in DataParallel", net="wrapped"),
    "a number that the model counts in an attribute": habit(net="count"),
    "a mean of batches in an attribute of the model": habit(
        "keeps attributes of the module", net="mean", late=True
    ),
    "layers that are frozen, and trained from an epoch on": habit(net="thaw", each=True),
    "a copy of the model that is made after ElasticLoop(...)": habit(net="taught"),
    "a learning rate that is set before an epoch's batches": habit(net="lower"),
    "add_param_group in training": habit("keeps its slots", net="group"),
    "a loss with parameters": habit("that no checkpoint would hold", net="criterion"),
    "a loss with parameters that ElasticLoop is given": habit(
        "parameters outside the model", net="criterion, passed"
    ),
    "torch.compile of a part": habit(net="compiled part", epochs=1),
}
