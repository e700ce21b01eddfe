"""What callbacks, a subclass of ``Trainer``, the model and the data keep beside checkpoints."""

from __future__ import annotations

import copy
import dis
import logging
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from optuna_deadline_torch.changed_values import ChangedValues, changed
from optuna_deadline_torch.consensus import Consensus
from optuna_deadline_torch.module_walk import ModuleWalk
from optuna_deadline_torch.object_walk import Lost, ObjectWalk, Place
from optuna_deadline_torch.seeding import Generators
from optuna_deadline_torch.user_code import CALLABLES, UserCode
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import CallbackHandler, ExportableState

from optuna_deadline.plain_data import read_plain, write_plain
from optuna_deadline_transformers.losses import RunningLoss

_log = logging.getLogger("optuna_deadline")
_FILE = "optuna_deadline_attributes"  # in the trainer's checkpoint
_SETTINGS = ("max_grad_norm",)  # arguments that each step reads
_FUNCTIONS = "compute_loss_func", "compute_metrics"  # of the user's, which a trainer calls


class TrainerWalk(ModuleWalk):
    """The values that a training keeps outside the checkpoints of its trainer.

    Args:
        model: The bare model.
        optimizer: Its optimizer.
        users: By name, the user's callbacks and ``Trainer``.
        loader: The loader of the training data.
        args: The training arguments.
        of_data: Whether to look at the training data alone.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        users: Mapping[str, Any],
        loader: Any,
        args: Any,
        *,
        of_data: bool = False,
    ) -> None:
        super().__init__(UserCode(model, *users.values()))
        self._saved_elsewhere(model)
        self._seen |= {id(optimizer), *map(id, users.values())}
        if not of_data:
            self._training(model, users)
            for name in _SETTINGS:
                value = getattr(args, name)
                self.places[f"args.{name}"] = Place(value, value, partial(setattr, args, name))
        self._loaders([loader])
        if not of_data:
            self._globals()

    def _training(self, model: Any, users: Mapping[str, Any]) -> None:
        self._module(model, {})
        for name in [name for name in self.places if name.endswith(".training")]:
            del self.places[name]  # the trainer sets it before each step
        for path, one in users.items():
            self._attributes(path, one, _known_of(one))
            for name in _FUNCTIONS:
                if isinstance(function := getattr(one, name, None), CALLABLES):
                    self._called(f"{path}.{name}", function, 0)


class Others(ChangedValues):
    """The values of the user's other objects in a training, and of the model's parts.

    Until its first step the callback that owns this is called before the others: what they count
    at the start of an epoch is counted after the values of the segment before are back.

    Args:
        own: The callback, whose ``on_train_begin`` is running.
        trainer: The trainer.
        resumed: The folder that the training resumes from, if it does.
        model: The bare model.
        optimizer: Its optimizer.
        loader: The loader of the training data.
        consensus: Of the segment's ranks.
    """

    def __init__(
        self,
        own: TrainerCallback,
        trainer: Trainer,
        resumed: Path | None,
        model: Any,
        optimizer: Any,
        loader: Any,
        consensus: Consensus,
    ) -> None:
        self._handler: CallbackHandler | None = trainer.callback_handler
        self._order: list[Any] = trainer.callback_handler.callbacks
        found = [one for one in (*self._order, trainer) if _is_users(one)]
        #: By name, the user's objects.
        self.users = {
            f"{type(one).__qualname__} {place}": one
            for place, one in enumerate(one for one in found if one is not own)
        }
        self._look = partial(TrainerWalk, model, optimizer, self.users, loader, trainer.args)
        super().__init__(
            self._look,
            self.tells,
            "Use a value that all slots share.",
            "Keep them in numbers, texts and tensors of a callback, in a callback that is an"
            " ExportableState, or in buffers of the model.",
        )
        self._consensus, self._loss = consensus, RunningLoss(trainer)
        self._device = next((one.device for one in model.parameters()), torch.device("cpu"))
        self._groups = optimizer.param_groups
        self._rates = [_without_parameters(group) for group in self._groups]
        kept = None if resumed is None else resumed / _FILE
        self._resumed = read_plain(kept) if kept is not None and kept.exists() else {}
        self._saved = self._resumed.get("values", {})
        self._told = {*self._resumed.get("told", ())}
        self._loss.restore(self._resumed.get("loss", []))
        self._of_data: dict[str, Any] | None = None  # at an epoch's first step
        if self._handler is not None:
            self._handler.callbacks = [own, *(one for one in self._order if one is not own)]

    @property
    def generators(self) -> Generators:
        """The random generators of the user's objects."""
        trainers = [one for one in self.users.values() if isinstance(one, Trainer)]
        held = [item for one in trainers for item in vars(one).items()]
        own = {name: value for name, value in held if name not in _of_trainers()}
        return Generators(own, *(one for one in self.users.values() if one not in trainers))

    def begin_epoch(self) -> None:
        """Restore the values; called at the start of each epoch."""
        self._of_data = None
        if self._first is None or self._saved:
            walk = self._walk()
            self._first = self._first or _of_data(walk.values(), wanted=False)
            if self._saved:
                self._restore(walk, {})

    def begin_step(self) -> None:
        """Restore them where a part of an epoch was trained; called at the start of each step."""
        if self._saved and self._resumed["epoch"] % 1:  # others have begun it again
            walk, first = self._walk(), self._first or {}
            again = changed(first, _of_data(walk.values(), wanted=False)) & first.keys()
            self._restore(walk, {name: first[name] for name in again})
            for group, rates in zip(self._groups, self._rates, strict=True):
                group.update(copy.deepcopy(rates))
        self._saved = {}
        if self._of_data is None:
            self._of_data = self._look(of_data=True).values()
        if self._handler is not None:
            now = self._handler.callbacks  # one of them may have been added or removed since
            kept = [one for one in self._order if any(one is other for other in now)]
            kept += [one for one in now if not any(one is other for other in kept)]
            self._handler.callbacks, self._handler = kept, None

    def state(self, epoch: float) -> dict[str, Any]:
        """The changed values for :meth:`write`; every rank calls it."""
        now = self.values()
        _, divided = self._divided(self._consensus, _of_data(now, wanted=False))
        counted = changed(self._of_data or {}, _of_data(now, wanted=True))
        if counted and self.tells("data"):
            _log.warning(
                "Reading the training data changes it (%s), and Trainer reads a batch ahead: after"
                " a pause it is as it was made. Let a sample depend on its index and the epoch.",
                ", ".join(sorted(counted)),
            )
        loss = self._loss.state(self._consensus)
        return {"values": divided, "epoch": epoch, "loss": loss, "told": sorted(self._told)}

    @staticmethod
    def write(state: Mapping[str, Any], folder: Path) -> None:
        """Write :meth:`state` into a checkpoint."""
        write_plain(state, folder / _FILE)

    def _restore(self, walk: ObjectWalk, others: Mapping[str, Any]) -> None:
        """Restore the saved values, and others where none is saved."""
        saved = self._of_this_rank(self._consensus.rank, self._consensus.world_size)
        self._kept |= saved.keys()
        for name, node in {**others, **saved}.items():
            if not isinstance(node, Lost):
                walk.restore(name, node, self._device)

    def tells(self, topic: str) -> bool:
        """Whether to log a topic now: once in a trial."""
        new = topic not in self._told
        self._told.add(topic)
        return new and self._consensus.rank == 0


def _of_data(values: Mapping[str, Any], *, wanted: bool) -> dict[str, Any]:
    """The values in the training data, or all others."""
    return {name: one for name, one in values.items() if name.startswith("loader ") == wanted}


def _without_parameters(group: Mapping[str, Any]) -> dict[str, Any]:
    return copy.deepcopy({name: one for name, one in group.items() if name != "params"})


def _is_users(one: Any) -> bool:
    """Whether it is of a class of the user's that does not save its own state."""
    library = type(one).__module__.partition(".")[0] in ("transformers", "optuna_deadline")
    return not (library or isinstance(one, ExportableState))


def _known_of(one: Any) -> frozenset[str]:
    """The names of attributes that a library sets."""
    return _of_trainers() if isinstance(one, Trainer) else frozenset()


@lru_cache(1)
def _of_trainers() -> frozenset[str]:
    functions = [one for one in vars(Trainer).values() if isinstance(one, FunctionType)]
    steps = (step for one in functions for step in dis.get_instructions(one))
    return frozenset(step.argval for step in steps if step.opname == "STORE_ATTR")
