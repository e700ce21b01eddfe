"""Checkpoint files that are whole or not there, and checksums that find what loads silently wrong.

A torn archive fails to load, but one flipped byte inside a tensor does not: only the checksum in
the table finds it. The row in the table is the commit point; a file without a row was never there.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from optuna_deadline.crashpoints import crashpoint


class Checkpoint(NamedTuple):
    """A row of the table: which file, what it holds, and how to know it again."""

    number: int  #: of the trial
    fence: int  #: of the segment that wrote it
    step: int  #: the last step it contains
    value: float | None  #: what this very state reported, if it did
    path: Path
    size: int
    checksum: str


def write_atomically(path: Path, write: Callable[[Path], Any]) -> Path:
    """Let ``write`` fill a temporary file beside ``path``, sync it and rename it to ``path``."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        write(temporary)
        crashpoint("checkpoint.written")
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
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
    return path


def checksum(path: Path) -> str:
    """The BLAKE2b digest of a file."""
    digest = hashlib.blake2b(digest_size=20)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return f"blake2b:{digest.hexdigest()}"


def intact(checkpoint: Checkpoint) -> bool:
    """Whether the file is the one that was written, byte for byte."""
    try:
        return (
            checkpoint.path.stat().st_size == checkpoint.size
            and checksum(checkpoint.path) == checkpoint.checksum
        )
    except OSError:
        return False
