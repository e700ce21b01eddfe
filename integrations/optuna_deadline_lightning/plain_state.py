"""What a training keeps outside Lightning's checkpoints, saved and put back.

Lightning's checkpoints have parameters, buffers, and what has a ``state_dict``. A list of losses,
a count, a teacher that is kept in a list, the slow weights of an optimizer, a global variable or
the set of trained parameters would start again in each segment. So whatever has changed since a
segment's first step is saved too, if it consists of numbers, texts and tensors. What has changed
and cannot be saved is named once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import BaseFinetuning, Callback, StochasticWeightAveraging
from lightning.pytorch.utilities import CombinedLoader
from optuna_deadline_torch.consensus import Consensus

from optuna_deadline_lightning.object_walk import Lost
from optuna_deadline_lightning.packing import same
from optuna_deadline_lightning.walk import LIMITS, Walk

_log = logging.getLogger(__name__)
_MODULE = ".state_dict"  # ends the name of a module, whose values may be too large to keep twice


class PlainState:
    """The plain values of a trainer's module, data module, callbacks and optimizers.

    Args:
        trainer: The trainer, whose module is attached.
        tells: Whether to log something about a topic.
    """

    def __init__(self, trainer: pl.Trainer, tells: Callable[[str], bool]) -> None:
        self._trainer = trainer
        self._should_log = tells
        self._saved: Mapping[str, Any] = {}
        self._kept: set[str] = set()  # names of what was saved, which stays so
        self._asked: dict[str, Any] = {}  # when training data was last requested
        self._restored: set[str] = set()  # by the module, the data module or a callback
        self._checked: set[str] = set()  # changed by the sanity check
        self._first: dict[str, Any] | None = None  # at this segment's first step
        self._built: dict[str, Any] | None = None  # the structure there

    def watch_restoring(self, restored_weights: Callable[[], None] | None) -> None:
        """Skip what the user's own hooks restore from the checkpoint.

        Args:
            restored_weights: Called when the weights are restored, if given.
        """
        connector: Any = self._trainer._checkpoint_connector
        restore = connector._restore_modules_and_callbacks

        def restored(*args: Any, **kwargs: Any) -> None:
            before = self._now()
            restore(*args, **kwargs)
            self._restored = _changed(before, self._now())
            if restored_weights is not None:
                restored_weights()

        connector._restore_modules_and_callbacks = restored

    def begin_check(self) -> None:
        """Start the sanity check, which only a first segment has."""
        self._first = self._now()

    def end_check(self) -> None:
        """End the sanity check; segments without one start with other values."""
        self._checked = _changed(self._first or {}, self._now())
        self._first = None

    def changed_structure(self) -> list[str]:
        """What a resumed segment would not build as it is now: layers, optimizers, schedulers."""
        if self._built is None:
            return []
        now = _structure(self._trainer)
        names = [*now, *(self._built.keys() - now.keys())]
        return [name for name in names if now.get(name) != self._built.get(name)]

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
        copied, saved = self._copied(), self._of_this_rank()
        self._put_back(walk, saved)
        self._saved, self._kept = {}, {*saved}
        return bool(_changed(copied, self._copied()))

    def before_request(self) -> None:
        """Put values back as they were at the last request for training data, and note them.

        A ``train_dataloader`` may depend on what training changes. What training has changed since
        then is put back by :meth:`begin`.
        """
        if self._saved:
            then = {**self._of_this_rank(), **self._saved["asked"]}
            for name in self._saved["later"]:
                then.pop(name, None)
            self._put_back(self._walk(), then)
        self._asked = self._now()

    def _of_this_rank(self) -> dict[str, Any]:
        each, trainer = self._saved["each"], self._trainer
        own = each[trainer.global_rank if len(each) == trainer.world_size else 0] if each else {}
        return {**self._saved["all"], **own}

    def _put_back(self, walk: Walk, nodes: Mapping[str, Any]) -> None:
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

    def _walk(self) -> Walk:
        return Walk(self._trainer, self._loaders())

    def state(self, consensus: Consensus) -> dict[str, Any]:
        """The changed values, in plain numbers, texts and tensors; every rank calls it.

        Returns:
            The values that all ranks have alike and those of each rank. Of the last request for
            training data: the values that were others, and the names that were not there.
        """
        if self._saved:  # not put back yet
            return dict(self._saved)
        now = self._now()
        first = now if self._first is None else self._first  # none before training has started
        changed = _changed(first, now) | ((self._checked | self._kept) & now.keys())
        lost = {name for name in changed if isinstance(now[name], Lost)}
        names = changed - lost
        parts = consensus.gather({name: now[name] for name in now if name in names})
        alike = {
            name: node
            for name, node in parts[0].items()
            if all(name in part and same(node, part[name]) for part in parts)
        }
        apart = [name for name in parts[0] if name not in alike]
        lost &= {*first, *(name for name in lost if isinstance(now[name].shown, type))}
        self._warn(apart, sorted(lost))
        each = [{name: part[name] for name in apart if name in part} for part in parts]
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
        return {"all": alike, "each": each if apart else [], "asked": asked, "later": later}

    def _now(self) -> dict[str, Any]:
        return self._walk().values()

    def _warn(self, apart: Sequence[str], lost: Sequence[str]) -> None:
        if apart and self._should_log("attributes apart"):
            _log.warning(
                "Each of the trial's %d slots keeps attributes of the module (%s) for itself: they"
                " are of its part of the batches, and on another number of slots all go on with"
                " those of the first one. Use a metric, or self.log(..., on_epoch=True).",
                self._trainer.world_size,
                ", ".join(apart),
            )
        if lost and self._should_log("attributes lost"):
            _log.warning(
                "These values start again each time that the trial comes back: %s. They"
                " are too large for its checkpoints, or have more in them than numbers, texts"
                " and tensors. Keep them in on_save_checkpoint and on_load_checkpoint, or in"
                " buffers.",
                ", ".join(lost),
            )


def _structure(trainer: pl.Trainer) -> dict[str, Any]:
    """What a checkpoint's parts must fit, by name, but what Lightning's callbacks build again."""
    found: dict[str, Any] = {
        name: getattr(one, "shape", None)
        for name, one in trainer.lightning_module.state_dict().items()
    }
    first: dict[int, str] = {}
    for name, part in trainer.lightning_module.named_modules(remove_duplicate=False):
        found[f"the name {name}"] = first.setdefault(id(part), name)  # of one with several names
        found[f"the class of {name}"] = type(part)
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    grows = any(isinstance(one, BaseFinetuning) for one in callbacks)
    averages = any(isinstance(one, StochasticWeightAveraging) for one in callbacks)
    for place, optimizer in enumerate(trainer.optimizers):
        groups = [len(group["params"]) for group in optimizer.param_groups]
        found[f"optimizer {place}"] = type(optimizer), not grows and groups
    for place, config in enumerate([] if averages else trainer.lr_scheduler_configs):
        found[f"scheduler {place}"] = type(config.scheduler)
    return found


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> set[str]:
    return {name for name in now if name not in before or not same(before[name], now[name])}
