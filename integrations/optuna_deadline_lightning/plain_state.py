"""What a training keeps outside Lightning's checkpoints, saved and put back.

What Lightning's hooks change and restore at a training's start has its own order here: the sanity
check, the user's own hooks for checkpoints, and the requests for training data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import BaseFinetuning, Callback, StochasticWeightAveraging
from lightning.pytorch.utilities import CombinedLoader
from optuna_deadline_torch.changed_values import ChangedValues, changed
from optuna_deadline_torch.consensus import Consensus
from optuna_deadline_torch.module_walk import structure
from optuna_deadline_torch.object_walk import Lost, ObjectWalk
from optuna_deadline_torch.packing import same
from torchmetrics.wrappers import MetricTracker

from optuna_deadline.module_values import changed_structure
from optuna_deadline_lightning.walk import LIMITS, Walk

_MODULE = ".state_dict"  # ends the name of a module, whose values may be too large to keep twice


class PlainState(ChangedValues):
    """The plain values of a trainer's module, data module, callbacks and optimizers.

    Args:
        trainer: The trainer, whose module is attached.
        tells: Whether to log something about a topic.
    """

    def __init__(self, trainer: pl.Trainer, tells: Callable[[str], bool]) -> None:
        super().__init__(
            lambda: Walk(trainer, self._loaders()),
            tells,
            "Use a metric, or self.log(..., on_epoch=True).",
            "Keep them in on_save_checkpoint and on_load_checkpoint, or in buffers.",
        )
        self._trainer = trainer
        self._asked: dict[str, Any] = {}  # when training data was last requested
        self._restored: set[str] = set()  # by the module, the data module or a callback
        self._checked: set[str] = set()  # changed by the sanity check
        self._built: dict[str, Any] | None = None  # the structure there

    def watch_restoring(self, restored_weights: Callable[[], None] | None) -> None:
        """Skip what the user's own hooks restore from the checkpoint.

        Args:
            restored_weights: Called when the weights are restored, if given.
        """
        connector: Any = self._trainer._checkpoint_connector
        restore = connector._restore_modules_and_callbacks

        def restored(*args: Any, **kwargs: Any) -> None:
            before = self.values()
            restore(*args, **kwargs)
            self._restored = changed(before, self.values())
            if restored_weights is not None:
                restored_weights()

        connector._restore_modules_and_callbacks = restored

    def begin_check(self) -> None:
        """Start the sanity check, which only a first segment has."""
        self._first = self.values()

    def end_check(self) -> None:
        """End the sanity check; segments without one start with other values."""
        self._checked = changed(self._first or {}, self.values())
        self._first = None

    def changed_structure(self) -> list[str]:
        """What a resumed segment would not build as it is now: layers, optimizers, schedulers."""
        if self._built is None:
            return []
        return changed_structure(self._built, _structure(self._trainer))

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore :meth:`state`: at once what decides whether training goes on, the rest later."""
        self._saved = saved if any(saved.values()) else {}
        limits = {name: saved["all"][name] for name in saved["all"].keys() & LIMITS}
        if limits:
            self._put_back(self._walk(), limits)

    def begin(self) -> bool:
        """Put saved values back; call when all hooks of the training's start have run.

        Returns:
            Whether the loaders' worker processes have copies of the data as it was before.
        """
        walk = self._walk()
        self._built = _structure(self._trainer)
        self._first = walk.values()
        if not self._saved:
            return False
        copied, saved = self._copied(), self._saved_here()
        self._put_back(walk, saved)
        self._saved, self._kept = {}, {*saved}
        return bool(changed(copied, self._copied()))

    def before_request(self) -> None:
        """Put values back as they were at the last request for training data, and note them.

        A ``train_dataloader`` may depend on what training changes. What training has changed since
        then is put back by :meth:`begin`.
        """
        if self._saved:
            then = {**self._saved_here(), **self._saved["asked"]}
            for name in self._saved["later"]:
                then.pop(name, None)
            self._put_back(self._walk(), then)
        self._asked = self.values()

    def _saved_here(self) -> dict[str, Any]:
        return self._of_this_rank(self._trainer.global_rank, self._trainer.world_size)

    def _put_back(self, walk: ObjectWalk, nodes: Mapping[str, Any]) -> None:
        for name, node in nodes.items():
            if name not in self._restored:
                walk.restore(name, node, self._trainer.strategy.root_device)

    def _copied(self) -> dict[str, Any]:
        """The values in the data that a loader copies to worker processes at an epoch's start."""
        return Walk(
            None,
            [
                one
                for one in self._loaders()
                if getattr(one, "num_workers", 0) and not getattr(one, "persistent_workers", False)
            ],
        ).values()

    def _loaders(self) -> list[Any]:
        loaders = self._trainer.train_dataloader
        return [] if loaders is None else CombinedLoader(loaders).flattened

    def state(self, consensus: Consensus) -> dict[str, Any]:
        """The changed values, in plain numbers, texts and tensors; every rank calls it.

        Returns:
            The values that all ranks have alike and those of each rank. Of the last request for
            training data: the values that were others, and the names that were not there.
        """
        if self._saved:  # not put back yet
            return dict(self._saved)
        now = self.values()
        names, divided = self._divided(consensus, now, self._checked)
        then = {
            name: self._asked[name]
            for name in names & self._asked.keys()
            if not isinstance(self._asked[name], Lost)
        }
        asked = {
            name: node
            for name, node in then.items()
            if not name.endswith(_MODULE) and not same(node, now[name])
        }
        later = sorted(names - then.keys())
        return {**divided, "asked": asked, "later": later}


def _structure(trainer: pl.Trainer) -> dict[str, Any]:
    """What a checkpoint's parts must fit, by name, but what Lightning's callbacks build again."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    grows = any(isinstance(one, BaseFinetuning) for one in callbacks)
    averages = any(isinstance(one, StochasticWeightAveraging) for one in callbacks)
    module = trainer.lightning_module
    found = structure(module, trainer.optimizers, groups=not grows)
    trackers = [name for name, one in module.named_modules() if isinstance(one, MetricTracker)]
    for grown in [name for name in found if any(f" {one}." in name for one in trackers)]:
        del found[grown]  # a metric for each epoch, which is made again
    for place, config in enumerate([] if averages else trainer.lr_scheduler_configs):
        found[f"scheduler {place}"] = type(config.scheduler)
    for place, one in enumerate(callbacks):
        found[f"callback {place}"] = type(one)
    return found
