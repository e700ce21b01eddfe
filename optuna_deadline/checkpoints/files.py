"""Checkpoint files that are complete or absent, and checksums against silent damage.

A torn archive fails to load, but one flipped byte inside a tensor does not: only the checksum in
the table finds it. The row in the table is the commit point; a file without a row does not count.

The checksum is a CRC-32, as in the archive itself. It has to find accidents, of which it misses
one in four thousand million, and it reads at the speed of memory. A stronger digest takes longer
than the whole writing of the file.
"""

from __future__ import annotations

import hashlib
import os
import uuid
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from optuna_deadline._crashpoints import crashpoint
from optuna_deadline.checkpoints.storage import Location, StoreAway, open_file, size


class Checkpoint(NamedTuple):
    """A row of the table: the file, its content, and its checksum."""

    number: int  #: of the trial
    fence: int  #: of the segment that wrote it
    step: int  #: the last step it contains
    value: float | None  #: the report of this very state, if there is one
    path: Location
    size: int
    checksum: str


def write_atomically(path: Path, write: Callable[[Path], Any]) -> Path:
    """Let ``write`` fill a temporary file beside ``path``, sync it and rename it to ``path``."""
    write_checked(path, write)
    return path


def write_checked(path: Path, write: Callable[[Path], Any]) -> str:
    """Like :func:`write_atomically`; returns the checksum, computed while the disk syncs."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        write(temporary)
        crashpoint("checkpoint.written")
        with open(temporary, "rb+") as file, ThreadPoolExecutor(1) as thread:
            syncing = thread.submit(os.fsync, file.fileno())
            found = checksum(temporary)
            syncing.result()
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


def checksum(location: Location, kind: str = "crc32") -> str:
    """The CRC-32 of a file at any location; ``"blake2b"`` is in rows of the first releases."""
    found, digest = 0, hashlib.blake2b(digest_size=20)
    with open_file(location) as file:
        while block := file.read(1 << 20):
            if kind == "blake2b":
                digest.update(block)
            else:
                found = zlib.crc32(block, found)
    return f"blake2b:{digest.hexdigest()}" if kind == "blake2b" else f"crc32:{found:08x}"


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
        kind = checkpoint.checksum.partition(":")[0]
        return checksum(checkpoint.path, kind) == checkpoint.checksum
    except StoreAway:
        raise
    except OSError:
        return False
