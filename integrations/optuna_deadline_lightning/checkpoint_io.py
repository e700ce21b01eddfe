"""Writes Lightning's checkpoints so that a file is complete or absent.

Lightning writes to ``$TMPDIR`` and moves the file, which is a copy if that is another file system,
and syncs nothing. A power cut or a kill may then leave half a file under its final name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from optuna_deadline.checkpoints.files import write_atomically


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


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes local checkpoints to a temporary file beside them, syncs and renames.

    Args:
        trusted: A folder that only this trial writes to; checkpoints from it may hold any
            hyper-parameters (``weights_only`` is off unless asked for).
    """

    def __init__(self, trusted: Path | None = None) -> None:
        self.trusted = trusted

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: _PATH, storage_options: Any | None = None
    ) -> None:
        """Save a checkpoint; paths with a scheme (``s3://``) are left to Lightning."""
        if storage_options is not None or "://" in os.fspath(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, lambda temporary: torch.save(checkpoint, temporary))

    def load_checkpoint(
        self,
        path: _PATH,
        map_location: Callable[..., Any] | None = lambda storage, loc: storage,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Load a checkpoint as Lightning does."""
        if weights_only is None and self.trusted is not None:
            weights_only = False if Path(path).parent == self.trusted else None
        return super().load_checkpoint(path, map_location, weights_only)
