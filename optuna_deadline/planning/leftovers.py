"""Deletes the checkpoints that an ended study needs no longer.

The planner decides which checkpoint stays, and stores its path with the study's end. Each worker
then deletes the other files that its host reaches, and a file's row after the file. So the rows
say what is left for the next process, and where.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from rich.filesize import decimal

from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.checkpoints.restore import is_own_file
from optuna_deadline.checkpoints.sharing import is_here
from optuna_deadline.checkpoints.storage import Location, name_of, parse_location, remove

_logger = logging.getLogger("optuna_deadline")

_BATCH = 500  # rows of one transaction


@dataclass
class Deletion:
    """What came of deleting checkpoints.

    Attributes:
        files: Deleted files.
        size: Their bytes.
        left: Those that should be deleted and are not.
        error: Why, if the store or the disk refused.
    """

    files: int
    size: int
    left: list[Checkpoint]
    error: OSError | None = None

    def warn(self, study_name: str) -> None:
        """Say what is left, if anything is."""
        if self.left:
            why = "" if self.error is None else f" ({self.error})"
            _logger.warning(
                "%d checkpoints (%s) that the study needs no longer are left, the first is %s%s: "
                "the next worker of the study deletes them, or 'optuna-deadline clean %s'.",
                len(self.left), decimal(sum(row.size for row in self.left)), self.left[0].path,
                why, study_name,
            )  # fmt: skip


def needless(table: AllocationTable) -> list[Checkpoint]:
    """The checkpoints to delete by the planner's decision at the end of the study."""
    ends = table.events(kinds=["settle"])
    kept = ends[-1].detail.get("kept") if ends else None
    if kept is None:  # none can be read, or all are kept
        return []
    best = parse_location(str(kept))
    return [row for row in table.checkpoints() if row.path != best]


def delete_needless(
    table: AllocationTable, folder: Location, study: str, host: str, seconds: float
) -> None:
    """Delete what an ended study needs no longer, and say what is left after some seconds.

    Args:
        table: The study's table.
        folder: The study's folder, or its URL.
        study: Its name.
        host: This host's name.
        seconds: For how long.
    """
    until = time.monotonic() + seconds
    delete(table, needless(table), name_of(folder), host, until).warn(study)


def delete(
    table: AllocationTable, rows: list[Checkpoint], study_folder: str, host: str, until: float
) -> Deletion:
    """Delete checkpoints that this host reaches, and their rows.

    Args:
        table: The study's table.
        rows: The checkpoints.
        study_folder: The name of the study's folder; files elsewhere stay.
        host: This host's name.
        until: No further file is deleted after this, on the monotonic clock.
    """
    origins = {origin.path: origin for origin in table.checkpoint_origins()} if rows else {}
    own = [row for row in rows if is_own_file(row.number, row.path, study_folder)]
    mine = [row for row in own if is_here(origins.get(row.path), host)]
    gone: list[Checkpoint] = []
    error: OSError | None = None
    for row in mine:
        if time.monotonic() >= until:
            break
        try:
            remove(row.path)
        except OSError as refused:
            error = refused
            break
        gone.append(row)
    for first in range(0, len(gone), _BATCH):
        table.drop_checkpoints(*[row.path for row in gone[first : first + _BATCH]])
    return Deletion(len(gone), sum(row.size for row in gone), mine[len(gone) :], error)
