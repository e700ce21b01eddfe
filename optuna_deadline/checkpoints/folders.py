"""Checkpoints of frameworks that save to a folder: one archive, as the table names one file.

The archive is a ZIP file without compression, since weights hardly compress.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

TOP = "checkpoint"  #: the folder in the archive


class _Saves(Protocol):
    """What a segment has beside the two methods."""

    elastic: bool
    rank: int
    resume: Path | None
    number: int

    @property
    def fence(self) -> int: ...

    @property
    def folder(self) -> Path: ...

    def save(
        self,
        write: Callable[[Path], Any],
        *,
        step: int,
        value: float | None = None,
        name: str | None = None,
    ) -> Path | None: ...


class FolderCheckpoints:
    """``save_dir`` and ``resume_dir`` of a segment, by its ``save`` and ``resume``."""

    number = 0  #: of the fit, among those of its trial

    @contextmanager
    def save_dir(self: _Saves, *, step: int, value: float | None = None) -> Iterator[Path]:
        """As :meth:`optuna_deadline.Segment.save_dir`."""
        folder = _new_folder(self if self.elastic and self.rank == 0 else None)
        failed: OSError | None = None
        try:
            try:
                yield folder
            except OSError as error:
                failed = error

            def write(path: Path) -> None:
                if failed is not None:
                    raise failed
                pack(folder, path)

            self.save(write, step=step, value=value)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def resume_dir(self: _Saves) -> Path | None:
        """As :meth:`optuna_deadline.Segment.resume_dir`."""
        if self.resume is None:
            return None
        folder = working_folder(self, "resumed", self.number)
        folder.mkdir(mode=0o700, exist_ok=True)
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the first rank of a host unpacks it
            if not (folder / TOP).exists():
                shutil.unpack_archive(self.resume, folder / "unpacked", "zip")
                (folder / "unpacked" / TOP).rename(folder / TOP)
        return folder / TOP


def pack(folder: Path, path: Path) -> None:
    """Write all that is in a folder to one file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, strict_timestamps=False) as archive:
        archive.writestr(f"{TOP}/", "")  # first, and also where the folder is empty
        for file in sorted(folder.rglob("*")):
            archive.write(file, Path(TOP, file.relative_to(folder)))


def is_packed(head: bytes) -> bool:
    """Whether a file that begins with ``head`` was written by :func:`pack`."""
    return head[:4] == b"PK\3\4" and head[30:].startswith(f"{TOP}/".encode())


def working_folder(segment: _Saves, name: str, number: int = 0) -> Path:
    """A place beside the trial's checkpoints, whose name lets workers delete it afterwards."""
    return segment.folder / f".{segment.fence}-{name}.{number:08x}.tmp"


def _new_folder(segment: _Saves | None) -> Path:
    """A new folder on the disk of the trial's checkpoints.

    Where that disk fails, another one is as good: what is saved is then lost with a message.
    """
    if segment is not None:
        with suppress(OSError):
            number = int.from_bytes(os.urandom(4), "big")
            folder = working_folder(segment, "folder", number)
            folder.mkdir(mode=0o700)
            return folder
    return Path(tempfile.mkdtemp(prefix="optuna-deadline-"))
