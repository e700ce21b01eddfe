"""Writes Lightning's checkpoints so that a file is complete or absent.

Lightning writes to ``$TMPDIR`` and moves the file, which is a copy if that is another file system,
and syncs nothing. A power cut or a kill may then leave half a file under its final name.
"""

from __future__ import annotations

import argparse
import datetime
import io
import os
import pathlib
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from optuna_deadline_torch.packing import without_tensors

from optuna_deadline.checkpoints.files import write_atomically
from optuna_deadline.errors import DeadlineError


class FormerFolders:
    """Lets each ModelCheckpoint without a ``dirpath`` use its folder of the segment before.

    Its default folder has the logger's version, which differs in each process, and in another
    folder it forgets the best scores.
    """

    def __init__(self) -> None:
        self._without: list[ModelCheckpoint] = []

    def note(self, callbacks: Iterable[Callback]) -> None:
        """Record which ones have no folder of their own; call before they are set up."""
        self._without = [
            one for one in callbacks if isinstance(one, ModelCheckpoint) and one.dirpath is None
        ]

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Set their former folders; call before their states are loaded."""
        states = checkpoint.get("callbacks", {})
        for one in self._without:
            if (former := states.get(one.state_key, {}).get("dirpath")) is not None:
                one.dirpath = former


class LastState(ModelCheckpoint):
    """In place of Lightning's default ModelCheckpoint, which would write a file at each epoch.

    It keeps the newest state. Here ``trainer.test(ckpt_path="best")`` after a fit writes that.

    Args:
        trainer: The trainer.
        path: The file.
    """

    def __init__(self, trainer: pl.Trainer, path: Path) -> None:
        self._trainer, self._path, self._at = trainer, path, -1
        super().__init__(save_top_k=0)

    @property
    def best_model_path(self) -> str:
        """The file with the state of the trainer's last step."""
        if not self._trainer.global_step:
            return ""
        if self._at != self._trainer.global_step:
            self._at = self._trainer.global_step
            self._trainer.save_checkpoint(self._path)
        return str(self._path)

    @best_model_path.setter
    def best_model_path(self, path: str) -> None:
        """Lightning's own bookkeeping."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the file is no part of a segment."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing either."""


#: Classes of usual hyper-parameters; loading them runs no code of a checkpoint.
_PLAIN: list[Any] = [
    argparse.Namespace,
    datetime.timedelta,
    pathlib.PosixPath,
    pathlib.PurePosixPath,
    pathlib.PureWindowsPath,
    pathlib.WindowsPath,
]
_REFUSED = (
    "The checkpoint holds more than tensors and plain values ({}), and loading such objects can"
    " run code. Leave them out, for example with save_hyperparameters(ignore=[...]); or allow them"
    " with DeadlineCallback(..., trust_checkpoints=True) if only you can write to the checkpoint"
    " folder and to the database."
)


def kinds(value: Any) -> set[type]:
    """The types of all values in a checkpoint."""
    found = {type(value)}
    if isinstance(value, Mapping):
        found.update(*(kinds(one) for pair in value.items() for one in pair))
    elif isinstance(value, (list, tuple, set, frozenset)):
        found.update(*map(kinds, value))
    return found


def check_loadable(checkpoint: Mapping[str, Any]) -> None:
    """Check that a checkpoint loads with ``weights_only=True``, before it is needed.

    Raises:
        DeadlineError: It does not.
    """
    buffer = io.BytesIO()
    torch.save(without_tensors(dict(checkpoint)), buffer)
    buffer.seek(0)
    with _refusing_objects():
        torch.load(buffer, weights_only=True)


def peek(path: Path, *, trust: bool) -> dict[str, Any]:
    """A trial's checkpoint, of which only the plain values are read now."""
    with _refusing_objects():
        found: dict[str, Any] = torch.load(
            path, map_location="cpu", weights_only=not trust, mmap=True
        )
    return found


@contextmanager
def _refusing_objects() -> Iterator[None]:
    try:
        with torch.serialization.safe_globals(_PLAIN):
            yield
    except pickle.UnpicklingError as error:
        found = re.search(r"(?:GLOBAL|global|class) ([\w.]+)", str(error))
        raise DeadlineError(_REFUSED.format(found[1] if found else "unknown")) from error


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes local checkpoints to a temporary file beside them, syncs and renames.

    Args:
        folder: The trial's folder; its checkpoints are loaded with ``weights_only=True`` unless
            the caller asks for something else.
        trust: Load any object from the trial's folder.
    """

    def __init__(self, folder: Path | None = None, *, trust: bool = False) -> None:
        self._folder, self._trust = folder, trust

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: str | Path,
        storage_options: Any | None = None,
    ) -> None:
        """Save a checkpoint; paths with a scheme (``s3://``) are left to Lightning."""
        if storage_options is not None or "://" in os.fspath(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        # As Lightning's own files, which may be for other users too.
        write_atomically(target, lambda temporary: torch.save(checkpoint, temporary), mode=0o666)

    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Callable[..., Any] | None = lambda storage, loc: storage,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Load a checkpoint as Lightning does, and the trial's own without objects.

        Raises:
            DeadlineError: The trial's checkpoint holds objects that are not trusted.
        """
        own = self._folder is not None and Path(path).parent == self._folder
        if weights_only is not None or not own:
            return super().load_checkpoint(path, map_location, weights_only)
        if self._trust:
            return super().load_checkpoint(path, map_location, False)
        with _refusing_objects():
            return super().load_checkpoint(path, map_location, True)
