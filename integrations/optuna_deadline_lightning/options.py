"""The trainer's options for the slots, and the callbacks that ranks do not need."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    Callback,
    ModelCheckpoint,
    ModelPruning,
    ModelSummary,
    ProgressBar,
)
from lightning.pytorch.loggers.logger import DummyLogger

from optuna_deadline.errors import DeadlineError
from optuna_deadline.segments import Segment
from optuna_deadline_lightning.checkpoint_io import AtomicCheckpointIO, LastState


def plain_options(plugins: Sequence[Any]) -> dict[str, Any]:
    """One device per trial: several under plain Optuna would run the study once per device."""
    return {
        "accelerator": "auto",
        "devices": 1,
        "strategy": "auto",
        "use_distributed_sampler": False,
        "plugins": [*plugins],
    }


def elastic_options(
    world_size: int, checkpoints: AtomicCheckpointIO, strategy: Any, plugins: Sequence[Any]
) -> dict[str, Any]:
    """The options of a rank, from the environment that the worker set."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    gpus = bool(os.environ.get("CUDA_VISIBLE_DEVICES", "").strip())
    return {
        "accelerator": "cuda" if gpus else "cpu",
        "devices": local,
        "num_nodes": max(1, world_size // local),
        "strategy": strategy if world_size > 1 else "auto",
        "use_distributed_sampler": False,
        # Named, so that a worker inside a SLURM or MPI job is not taken for a job of theirs.
        "plugins": [LightningEnvironment(), checkpoints, *plugins],
    }


def refuse_strategy(strategy: Any) -> None:
    """Refuse strategies whose checkpoints fit one number of ranks, or that start processes.

    Args:
        strategy: Its name, or itself.

    Raises:
        DeadlineError: It shards the model, or starts processes of its own.
    """
    name = strategy if isinstance(strategy, str) else type(strategy).__name__
    plain = name.lower().replace("_", "")
    if any(word in plain for word in ("fsdp", "deepspeed", "modelparallel")):
        raise DeadlineError(
            f"The strategy {name} shards the model, and a sharded trial cannot change its number"
            " of slots: use 'ddp' with a model that fits on one slot, or train it outside of an"
            " elastic trial."
        )
    start = getattr(strategy, "_start_method", None) or plain.removeprefix("ddp")
    if start.startswith(("spawn", "fork", "notebook")):
        raise DeadlineError(
            f"The strategy {name} starts its own processes by {start!r}, but the worker has"
            " started one per slot: use 'ddp', or leave the strategy out."
        )


def before_runs(look: Callable[[pl.Trainer], None]) -> None:
    """Check each trainer of this process before it starts or connects processes.

    The hooks of a callback come after that, and a trainer with more devices than there are ranks
    waits there until the process group's timeout.
    """
    for name in ("fit", "validate", "test", "predict"):
        setattr(pl.Trainer, name, _looked_at(getattr(pl.Trainer, name), look))


def _looked_at(run: Callable[..., Any], look: Callable[[pl.Trainer], None]) -> Callable[..., Any]:
    @functools.wraps(run)
    def looked_at(trainer: pl.Trainer, *args: Any, **kwargs: Any) -> Any:
        look(trainer)
        return run(trainer, *args, **kwargs)

    return looked_at


def refuse_other_slots(trainer: pl.Trainer, rank: int, slots: int) -> None:
    """Refuse a trainer that does not fit a segment's ranks.

    Raises:
        DeadlineError: It counts other devices, or distributes the data itself.
    """
    mend = (
        "leave devices, num_nodes and strategy out, and pass **deadline.trainer_options() to it."
    )
    if trainer.world_size != slots:
        raise DeadlineError(
            f"The trainer's world size is {trainer.world_size}, but the trial's number of slots is"
            f" {slots}: {mend}"
        )
    if trainer.global_rank != rank:
        raise DeadlineError(
            f"The trainer has rank {trainer.global_rank}, but its rank in the trial is"
            f" {rank}: {mend}"
        )
    if slots > 1 and trainer._accelerator_connector.use_distributed_sampler:
        raise DeadlineError(
            f"The trainer would divide the data between the slots a second time: {mend}"
        )


def hush() -> None:
    """Log Lightning's start messages once per trial, not once per segment and rank."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)


def refuse_own_fetching(module: pl.LightningModule) -> None:
    """Refuse a module that fetches its batches, as they are dealt before a step.

    Raises:
        DeadlineError: It does.
    """
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        raise DeadlineError(
            "training_step takes dataloader_iter and fetches its batches itself, so a trial cannot"
            " return to its place in the data: let it take batch and batch_idx."
        )


def look_at_callbacks(callbacks: Iterable[Callback], segment: Segment) -> None:
    """Refuse callbacks whose state cannot be restored, and keep others on one slot.

    Raises:
        DeadlineError: One keeps its state in the module in a form that no checkpoint restores.
    """
    for one in callbacks:
        if isinstance(one, ModelPruning):
            raise DeadlineError(
                f"{type(one).__name__} keeps its masks in no checkpoint, so a trial that "
                "resumes would train what was pruned: prune the best model after the "
                "study, or train "
                "this objective under study.optimize."
            )
        if isinstance(one, BaseFinetuning):
            segment.limit_slots(
                1,
                f"{type(one).__name__} trains further layers from an epoch on, and slots do not "
                "share the gradients of layers that are trained later.",
            )


def config_is_saved(callbacks: Iterable[Callback]) -> None:
    """Let ``LightningCLI`` save no configuration where it has: it would refuse to replace it."""
    cli = sys.modules.get("lightning.pytorch.cli")  # takes a while to import
    for one in callbacks:
        if cli is not None and isinstance(one, cli.SaveConfigCallback):
            one.already_saved = True


def leave_nothing(trainer: pl.Trainer, folder: Path) -> None:
    """Let a training that is only checked write nothing beside the trial's folder."""
    trainer.loggers = [DummyLogger() for _ in trainer.loggers]
    for one in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(one, ModelCheckpoint) and one.dirpath is not None:
            one.dirpath = str(folder / "kept")


def only_useful(trainer: pl.Trainer, last: Callback, file: Path) -> list[Callback]:
    """The trainer's callbacks without those that a rank does not need, ``last`` at the end.

    The worker shows progress and keeps checkpoints.

    Args:
        trainer: The trainer.
        last: The last one.
        file: Where the state goes that Lightning's default ModelCheckpoint would keep.
    """
    found: list[Callback] = []
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for one in callbacks:
        if _is_default(one):
            found.append(LastState(trainer, file))
        elif one is not last and not isinstance(one, (ProgressBar, ModelSummary)):
            found.append(one)
    return [*found, last]


def _is_default(callback: Callback) -> bool:
    if not isinstance(callback, ModelCheckpoint) or isinstance(callback, LastState):
        return False
    # The state key names when and by what it saves.
    default = callback.state_key == ModelCheckpoint().state_key
    return default and callback.dirpath is None and callback.filename is None
