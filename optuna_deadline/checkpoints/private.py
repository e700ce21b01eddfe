"""Folders that only one user can write to.

A checkpoint is code as far as pickle goes, and its row in the table names its path. So a worker
writes and reads checkpoints only in folders of its own user that others cannot change.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from optuna_deadline.errors import DeadlineError, spelled

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def make_private(folder: Path) -> None:
    """Create a folder for this user alone, or check an existing one.

    Raises:
        DeadlineError: The folder is a link, belongs to another user, or others can write to it.
        OSError: It cannot be created or read.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = os.lstat(folder)
    another = f"name another one with {spelled('checkpoints=', '--checkpoints')}"
    if stat.S_ISLNK(found.st_mode):
        raise DeadlineError(
            f"The checkpoint folder {folder} is a symbolic link: remove it, or {another}."
        )
    if found.st_uid != os.geteuid() and found.st_uid != _owner_of_new_files(folder):
        raise DeadlineError(f"The checkpoint folder {folder} belongs to another user: {another}.")
    if found.st_mode & _OTHERS_WRITE:
        raise DeadlineError(
            f"Other users can write to the checkpoint folder {folder}: run 'chmod go-w {folder}', "
            f"or {another}."
        )


def _owner_of_new_files(folder: Path) -> int | None:
    """The owner of a new file: a network file system may map this user to another one."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            return os.fstat(probe.fileno()).st_uid
    except OSError:
        return None
