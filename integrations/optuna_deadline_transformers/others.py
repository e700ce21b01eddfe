"""What other callbacks, a subclass of ``Trainer`` and the model keep beside its checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, TypeVar

from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer_callback import CallbackHandler, ExportableState

from optuna_deadline.module_values import ModuleValues
from optuna_deadline.plain_attributes import PlainAttributes
from optuna_deadline.plain_data import read_plain, write_plain

_FILE = "optuna_deadline_attributes"  # in the trainer's checkpoint
_Kind = TypeVar("_Kind")


class Others:
    """The plain attributes of the user's other objects in a training, and of the model's parts.

    Until its first step the callback that owns this is called before the others: what they count
    at the start of an epoch is counted after the values of the segment before are back.

    Args:
        own: The callback, whose ``on_train_begin`` is running.
        resumed: The folder that the training resumes from, if it does.
        model: The bare model.
    """

    def __init__(self, own: TrainerCallback, resumed: Path | None, model: Any) -> None:
        self._handler = next(_callers(CallbackHandler), None)
        self._order: list[Any] = [] if self._handler is None else self._handler.callbacks
        users = [one for one in (*self._order, *_callers(Trainer)) if _is_users(one)]
        self._attributes = PlainAttributes([one for one in users if one is not own], _of_trainer())
        self._modules = ModuleValues({"model": model})
        kept = None if resumed is None else resumed / _FILE
        self._kept = read_plain(kept) if kept is not None and kept.exists() else {}
        if self._handler is not None:
            self._handler.callbacks = [own, *(one for one in self._order if one is not own)]

    def begin_epoch(self) -> None:
        """Restore them; called at the start of each epoch."""
        self._restore()

    def begin_step(self) -> None:
        """Restore them where a part of an epoch was trained; called at the start of each step."""
        if self._kept.get("epoch", 0.0) % 1:  # others have counted its start again
            self._restore()
        self._kept = {}
        if self._handler is not None:
            now = self._handler.callbacks  # one of them may have been added or removed since
            kept = [one for one in self._order if any(one is other for other in now)]
            kept += [one for one in now if not any(one is other for other in kept)]
            self._handler.callbacks, self._handler = kept, None

    def write(self, folder: Path, state: TrainerState) -> None:
        """Write them into a checkpoint."""
        kept = {
            "values": self._attributes.changed(),
            "modules": self._modules.changed(),
            "epoch": float(state.epoch or 0.0),
        }
        write_plain(kept, folder / _FILE)

    def _restore(self) -> None:
        if self._kept:
            self._attributes.restore(self._kept["values"])
            self._modules.restore(self._kept["modules"])


def _callers(kind: type[_Kind]) -> Iterator[_Kind]:
    """The objects of a kind whose methods are running: no callback is given them."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if isinstance(found := frame.f_locals.get("self"), kind):
            yield found
            return
        frame = frame.f_back


def _is_users(one: Any) -> bool:
    """Whether it is of a class of the user's that does not save its own state."""
    library = type(one).__module__.partition(".")[0] in ("transformers", "optuna_deadline")
    return not (library or isinstance(one, ExportableState))


def _of_trainer() -> set[str]:
    """The names of attributes that ``Trainer`` itself uses, so that they are not a subclass's."""
    functions = [one for one in vars(Trainer).values() if isinstance(one, FunctionType)]
    return {name for one in functions for name in one.__code__.co_names}
