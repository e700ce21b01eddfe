"""Checkpoint files that are complete or absent, and digests of their content.

A torn archive fails to load, but one flipped byte inside a tensor does not, and a forged file may
run code when it is loaded: only the digest in the table finds both. The row in the table is the
commit point; a file without a row does not count.

The digest is SHA-256. It is computed while the disk syncs the file, beside the training.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from optuna_deadline._crashpoints import crashpoint
from optuna_deadline.checkpoints.storage import Location, StoreAway, open_file, size

_Found = TypeVar("_Found")


class Checkpoint(NamedTuple):
    """A row of the table: the file, its content, and its checksum."""

    number: int  #: of the trial
    fence: int  #: of the segment that wrote it
    step: int  #: the last step it contains
    value: float | None  #: the report of this very state, if there is one
    path: Location
    size: int
    checksum: str  #: the kind and the digest, as "sha256:..."


def write_atomically(path: Path, write: Callable[[Path], Any], *, mode: int = 0o600) -> Path:
    """Let ``write`` fill a temporary file beside ``path``, sync it and rename it to ``path``.

    Args:
        path: The file.
        write: Fills the file whose path it is given.
        mode: The permissions of the file, before the process's umask.
    """
    _write(path, write, mode, lambda temporary: None)
    return path


def write_checked(path: Path, write: Callable[[Path], Any]) -> str:
    """Like :func:`write_atomically`; returns the digest, computed while the disk syncs."""
    return _write(path, write, 0o600, checksum)


def _write(
    path: Path, write: Callable[[Path], Any], mode: int, while_syncing: Callable[[Path], _Found]
) -> _Found:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        # Created here: a planted link is not followed, and only this user can read the file.
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
        write(temporary)
        crashpoint("checkpoint.written")
        with open(temporary, "rb+") as file, ThreadPoolExecutor(1) as thread:
            try:
                sync = thread.submit(os.fsync, file.fileno()).result
            except RuntimeError:  # the system starts no more threads
                sync = partial(os.fsync, file.fileno())
            found = while_syncing(temporary)
            sync()
        crashpoint("checkpoint.synced")
        os.replace(temporary, path)
        crashpoint("checkpoint.renamed")
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return found


def checksum(location: Location) -> str:
    """The SHA-256 of a file at any location."""
    digest = hashlib.sha256()
    with open_file(location) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return f"sha256:{digest.hexdigest()}"


def verified(checkpoint: Checkpoint) -> bool:
    """Whether the file is verified to be the written one."""
    try:
        return intact(checkpoint)
    except StoreAway:
        return False


def intact(checkpoint: Checkpoint) -> bool:
    """Whether the file is the written one, byte for byte.

    Raises:
        StoreAway: It is in a store that does not answer.
    """
    try:
        if size(checkpoint.path) != checkpoint.size:
            return False
        return checksum(checkpoint.path) == checkpoint.checksum
    except StoreAway:
        raise
    except OSError:
        return False
