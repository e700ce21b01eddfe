"""A disk that a run can fill: a file system of its own in memory, in name spaces of its own.

Linux lets an ordinary user mount one there. Elsewhere a run has no such disk, and fills none.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_FOLDER = "CHAOS_FOLDER"
_SIZE = "1g"
_ROOM = 1 << 16  # bytes that stay free, so that files can still be made but not written
# PostgreSQL refuses to run as root, as which the disk is mounted: so the user is mapped twice.
_MOUNT = (
    f'mount -t tmpfs -o size={_SIZE},mode=700 tmpfs "$1" && user="$2" && shift 2 && '
    'exec unshare --user --map-user="$user" --map-group="$user" "$@"'
)


def enter(module: str, arguments: Sequence[str]) -> Path:
    """The folder of this run; starts ``module`` again in name spaces where they are allowed.

    Args:
        module: The module that calls this as a script.
        arguments: Its arguments.
    """
    if folder := os.environ.get(_FOLDER):
        return Path(folder)
    made = Path(tempfile.mkdtemp(prefix="optuna-deadline-chaos-"))
    (made / "disk").mkdir()
    user = str(os.geteuid() or 1000)
    mount = ["unshare", "--map-root-user", "--mount", "sh", "-c", _MOUNT, "sh"]
    mount += [str(made / "disk"), user]
    with suppress(FileNotFoundError):
        if subprocess.run([*mount, "true"], stderr=subprocess.DEVNULL).returncode == 0:
            again = [*mount, sys.executable, "-m", module, *arguments]
            code = subprocess.run(again, env={**os.environ, _FOLDER: str(made)}).returncode
            with suppress(OSError):  # logs are in it
                (made / "disk").rmdir()
                made.rmdir()
            sys.exit(code)
    return made


class Disk:
    """The disk of a run, which holds its database and its checkpoints.

    Args:
        folder: The folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "disk"
        self.own = self.folder.is_mount()  #: whether a run may fill it
        self._filler = self.folder / "filler"

    def fill(self) -> None:
        """Leave no room on it."""
        free = os.statvfs(self.folder)
        with self._filler.open("ab") as file, suppress(OSError):  # others take room too
            size = free.f_bavail * free.f_frsize - _ROOM
            os.posix_fallocate(file.fileno(), file.tell(), max(1, size))

    def free(self) -> None:
        """Give the room back."""
        self._filler.unlink(missing_ok=True)
