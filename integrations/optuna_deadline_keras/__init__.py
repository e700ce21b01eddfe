"""Keras under a deadline: a model that pauses and resumes between two epochs, on any backend."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from optuna_deadline.callers import running
from optuna_deadline.plain_data import random_state, read_plain, set_random_state, write_plain
from optuna_deadline.rounds import Rounds, metric

__all__ = ["DeadlineCallback"]

_MODEL, _RANDOM = "model.weights.h5", "random"  # in a checkpoint
#: What Keras sets in each callback, and in a model.
_OF_KERAS = {
    "_model", "model", "params", "validation_data", "stop_training", "_eval_epoch_iterator",
}  # fmt: skip


class DeadlineCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Reports to Optuna after each epoch, and follows the study's deadline and plan.

    Under ``study.optimize`` it prunes, and ends the training when there is no time for another
    report. Under an elastic worker the trial also pauses and resumes between any two epochs, on
    one slot, with its weights, optimizer, random numbers, and what other callbacks count in plain
    attributes, such as the patience of ``EarlyStopping``. A checkpoint is a folder with the
    weights as ``model.weights.h5``. Data begins anew after a pause: a generator, or an epoch of
    fewer steps than the data has.

    Args:
        trial: The trial that the objective was called with.
        monitor: The metric to report, such as ``"val_loss"``.
        epochs: The number of epochs of a whole training, as ``fit`` is given it.
        save_every: Seconds between two checkpoints without a best value, under a worker.
        fit: A name, needed where the objective trains several models one after the other, such as
            the folds of a cross-validation. Call :meth:`result` after each.

    Raises:
        DeadlineError: The objective has a second training without a name.

    Example:
        ```python
        deadline = DeadlineCallback(trial, "val_accuracy", epochs=20)
        model.fit(
            x,
            y,
            epochs=20,
            initial_epoch=deadline.initial_epoch,
            validation_data=(xv, yv),
            callbacks=[deadline],
        )
        return deadline.result()
        ```
    """

    def __init__(
        self,
        trial: Any,
        monitor: str,
        *,
        epochs: int,
        save_every: float = 60.0,
        fit: str | None = None,
    ) -> None:
        super().__init__()
        self.monitor = monitor
        self._epochs = epochs
        self._rounds = Rounds(
            trial,
            epochs,
            save_every=save_every,
            fit=fit,
            remedy="pass initial_epoch=deadline.initial_epoch to fit",
        )
        self._validating_since = 0.0

    @property
    def initial_epoch(self) -> int:
        """The epoch that this segment begins with; 0 at the start of the trial."""
        return self._epochs if self._rounds.ended else self._rounds.done

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore the built model, its layers and the other callbacks; called by Keras."""
        self._rounds.begin()
        if not self._rounds.elastic:
            return
        container = running(keras.callbacks.CallbackList)
        others: list[Any] = [] if container is None else container.callbacks
        if others and others[-1] is not self:  # what it saves is from after the others
            place = others.index(self)
            others.append(others.pop(place))
            others[place].on_train_begin(logs)  # which Keras would pass over
            return  # Keras calls this again, as the last
        if self._rounds.folder is not None:
            self._restore(self._rounds.folder)
        known = _OF_KERAS | vars(keras.Model()).keys()  # which is a layer too
        self._rounds.watch([*others[:-1], *_parts(self.model)], known)

    def _restore(self, folder: Path) -> None:
        self.model.optimizer.build(self.model.trainable_variables)
        self.model.load_weights(folder / _MODEL)
        kept = read_plain(folder / _RANDOM)
        for variable, seed in zip(self._seeds(), kept["seeds"], strict=True):
            variable.assign(np.array(seed, dtype="uint32"))
        for variable, trains in zip(self.model.variables, kept["trainable"], strict=True):
            variable.trainable = trains
        set_random_state(kept["random"])

    def on_test_begin(self, logs: Any = None) -> None:
        """Note the time; called by Keras."""
        self._validating_since = time.monotonic()

    def on_test_end(self, logs: Any = None) -> None:
        """Count the validation; called by Keras."""
        self._rounds.validated(time.monotonic() - self._validating_since)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Report, save, leave or prune; called by Keras."""
        found = logs or {}
        is_validated = any(name.startswith("val_") for name in found)
        value = partial(metric, found, self.monitor)
        unseen = self.monitor.startswith("val_") and not is_validated  # with a `validation_freq`
        ended = bool(self.model.stop_training)  # as by an early stop
        move = self._rounds.after(epoch + 1, None if unseen else value, ends=ended)
        if self._rounds.obey(move, self._write):
            self.model.stop_training = True

    def result(self) -> float:
        """The last reported value, also of an earlier segment; return it from the objective.

        Raises:
            DeadlineError: Nothing was reported.
        """
        return self._rounds.result(self._write)

    def _seeds(self) -> list[Any]:
        """The states of random generators in layers, which are no weights."""
        return [one for one in self.model.variables if one.path.endswith("seed_generator_state")]

    def _write(self, folder: Path) -> None:
        self.model.save_weights(folder / _MODEL)
        seeds = [keras.ops.convert_to_numpy(one).tolist() for one in self._seeds()]
        trainable = [bool(one.trainable) for one in self.model.variables]
        kept = {"seeds": seeds, "trainable": trainable, "random": random_state()}
        write_plain(kept, folder / _RANDOM)


def _parts(model: Any) -> Iterator[Any]:
    """The model and its layers."""
    yield model
    for one in getattr(model, "layers", ()):
        yield from _parts(one)
