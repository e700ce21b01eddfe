"""Whether the disk has room for a checkpoint of the trainer, whose own writing ends the trial."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

#: The trainer writes a folder, and one file is made of it.
_COPIES = 2
#: Weights and the two moments of Adam, as a guess before the first checkpoint.
_PER_WEIGHT = 3


class DiskRoom:
    """Judges whether one more checkpoint fits.

    Args:
        folder: Where it will be written; it need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._size: int | None = None

    def note_size(self, written: Path) -> None:
        """Note the size of a checkpoint that the trainer has written."""
        self._size = sum(file.stat().st_size for file in written.rglob("*"))

    def error(self, model: Any) -> OSError | None:
        """The error that the trainer would meet; None if there is room.

        Args:
            model: The model, for a guess before the first checkpoint.
        """
        place = next(each for each in (self._folder, *self._folder.parents) if each.exists())
        if not os.access(place, os.W_OK):
            return _error(errno.EROFS, place)
        size = self._size
        if size is None:
            weights = [] if model is None else model.parameters()
            size = _PER_WEIGHT * sum(each.numel() * each.element_size() for each in weights)
        free = shutil.disk_usage(place).free
        return _error(errno.ENOSPC, place) if free < _COPIES * size else None


def _error(number: int, place: Path) -> OSError:
    return OSError(number, os.strerror(number), str(place))
