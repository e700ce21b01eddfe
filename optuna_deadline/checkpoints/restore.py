"""Finds the newest intact checkpoint of a trial and brings it to this host.

To verify a checkpoint, all of it is read; one in a store is fetched first.
"""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from pathlib import Path

from optuna_deadline._threads import BackgroundQueue
from optuna_deadline.checkpoints.files import Checkpoint, intact, write_atomically
from optuna_deadline.checkpoints.private import make_private
from optuna_deadline.checkpoints.storage import (
    Location,
    fetch,
    join_location,
    list_files,
    name_of,
    remove,
)

_logger = logging.getLogger("optuna_deadline")

#: Files of a saver or of `segment.save`, and files that a kill has left incomplete.
_OWN_FILES = re.compile(
    r"segment-\d{6}-step-\d{9}\.ckpt|\d+--?\d+-[0-9a-f]{4}\.ckpt|\..+\.[0-9a-f]{8}\.tmp"
)
_FENCE = re.compile(r"\.?(?:segment-)?(\d+)-")  # their names begin with it
_QUICK_SECONDS = 0.2  # seconds: a small file needs no second scan


class CheckpointFolders:
    """Where ranks write, and where their checkpoints are kept if that is elsewhere.

    Args:
        root: The study's own folder, or its URL: then ranks write to a folder of this worker,
            which keeps uploaded files, so that a trial that resumes here fetches nothing.
    """

    def __init__(self, root: Location) -> None:
        self._store = None if isinstance(root, Path) else root
        self._root = root if isinstance(root, Path) else None
        self._temporary: Path | None = None

    def local_folder(self, number: int) -> Path:
        """The folder that the trial's ranks write to."""
        if self._root is None:
            self._root = self._temporary = Path(tempfile.mkdtemp(prefix="optuna-deadline-"))
        return self._root / f"trial-{number}"

    def remote_url(self, number: int) -> str | None:
        """The URL that its checkpoints are uploaded to, if they are."""
        return None if self._store is None else str(join_location(self._store, f"trial-{number}"))

    def local_path(self, number: int, location: Location) -> Path:
        """The local path of a checkpoint, once it was written or fetched."""
        if isinstance(location, Path):
            return location
        return self.local_folder(number) / name_of(location)

    def written_files(self, number: int) -> list[Location]:
        """The files that the trial's ranks have written or uploaded, without the user's files.

        Raises:
            OSError: The store did not answer.
        """
        folder = self._storage_folder(number)
        return [one for one in list_files(folder) if _OWN_FILES.fullmatch(name_of(one))]

    def may_delete(self, number: int, location: Location) -> bool:
        """Whether a file has one of this package's names, in the trial's folder.

        A row may name any file.
        """
        ours = _OWN_FILES.fullmatch(name_of(location)) is not None
        return ours and location == join_location(self._storage_folder(number), name_of(location))

    def _storage_folder(self, number: int) -> Location:
        store = self.remote_url(number)
        return self.local_folder(number) if store is None else store

    def may_hold(self, number: int) -> bool:
        """Whether files of a trial may exist; in a store that is unknown before a scan."""
        return self._store is not None or self.local_folder(number).is_dir()

    def close(self) -> None:
        """Delete the worker's own folder."""
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


def is_own_file(number: int, location: Location, study_folder: str) -> bool:
    """Whether a file has one of this package's names, in a trial's folder of a study.

    Args:
        number: The trial's.
        location: The file.
        study_folder: The name of the study's folder, wherever it is.
    """
    *_, study, trial, name = ("", "", *str(location).split("/"))
    named = _OWN_FILES.fullmatch(name) is not None
    return named and (study, trial) == (study_folder, f"trial-{number}")


def fence_of(name: str) -> int | None:
    """The segment that wrote a file of that name; None for other files."""
    found = _FENCE.match(name)
    return int(found[1]) if found else None


class CheckpointFetcher:
    """Finds the checkpoint that a trial resumes from, in a thread.

    Args:
        folders: Where files are.
        on_ready: Called when a result is ready that was not at once.
    """

    def __init__(self, folders: CheckpointFolders, on_ready: Callable[[], None]) -> None:
        self._folders = folders
        self._on_ready = on_ready
        self._queue = BackgroundQueue("resuming")
        self._requests: dict[int, tuple[int, Future[Path | None]]] = {}
        self._warned = False

    def request(self, number: int, fence: int, newest_first: Sequence[Checkpoint]) -> bool:
        """Whether the result is ready; call again after ``on_ready``.

        Args:
            number: The trial's.
            fence: Of its last segment: a trial that has trained elsewhere is looked up again.
            newest_first: Its checkpoints.
        """
        known = self._requests.get(number)
        if known is None or known[0] != fence:
            future = self._queue.submit(partial(self._fetch_newest, number, list(newest_first)))
            self._requests[number] = known = fence, future
            wait([future], _QUICK_SECONDS)
            if not future.done():
                future.add_done_callback(lambda _: self._on_ready())
        if not known[1].done():
            return False
        try:
            known[1].result()
        except OSError as error:  # an error of the store, or of the disk
            del self._requests[number]
            if not self._warned:
                _logger.warning("Trial %d waits for its checkpoint: %s.", number, error)
            self._warned = True
            return False
        self._warned = False
        return True

    def result(self, number: int) -> Path | None:
        """The result: an intact file here, or None for a trial that starts."""
        return self._requests.pop(number)[1].result()

    def close(self) -> None:
        """Stop; unfinished fetches are discarded."""
        self._queue.close(0.0)

    def _fetch_newest(self, number: int, newest_first: Sequence[Checkpoint]) -> Path | None:
        """The newest intact file; a damaged one falls back to the one before."""
        for checkpoint in newest_first:
            path = self._folders.local_path(number, checkpoint.path)
            if checkpoint.number != number and path == checkpoint.path:
                path = self._folders.local_folder(number) / name_of(path)
                _adopt(checkpoint.path, path)
            if self._fetch_intact(checkpoint, path):
                return path
            _logger.warning(
                "Checkpoint %s of trial %d is damaged or missing; the trial resumes from the "
                "one before.",
                checkpoint.path,
                number,
            )
        return None

    @staticmethod
    def _fetch_intact(checkpoint: Checkpoint, path: Path) -> bool:
        copy = checkpoint._replace(path=path)
        if intact(copy):
            return True
        if isinstance(checkpoint.path, Path):
            return False
        make_private(path.parent)
        with suppress(FileNotFoundError):
            write_atomically(path, lambda to: fetch(checkpoint.path, to))
        return intact(copy)


def _adopt(location: Path, path: Path) -> None:
    """Give a trial another one's file, which may be deleted at any time."""
    make_private(path.parent)
    try:
        path.hardlink_to(location)
    except (FileNotFoundError, FileExistsError):
        return  # deleted, or given before
    except OSError:  # another file system
        with suppress(FileNotFoundError):
            write_atomically(path, lambda to: shutil.copyfile(location, to))


class CheckpointSweeper:
    """Deletes the checkpoints that no row names, in the store and here.

    Args:
        folders: Where files are.
    """

    def __init__(self, folders: CheckpointFolders) -> None:
        self._folders = folders
        self._queue = BackgroundQueue("sweeping")
        self._warned = False
        self._scans: dict[int, tuple[int, set[str], Future[list[Location]]]] = {}

    def scan(self, number: int, fence: int, rows: Sequence[Checkpoint]) -> None:
        """List the checkpoints of a trial without a worker.

        Args:
            number: The trial's.
            fence: Of its last segment.
            rows: Its checkpoints.
        """
        if fence and (number not in self._scans or self._scans[number][0] != fence):
            named = {name_of(row.path) for row in rows}
            found = self._queue.submit(partial(self._folders.written_files, number))
            self._scans[number] = fence, named, found

    def sweep_unnamed(self, number: int, fence: int) -> None:
        """Delete files that no row names; call when the next segment is granted on this host.

        The fence is the next one, so no other segment had the trial since the scan, and no former
        segment can write a row. A slow scan also finds files of the next segment, which have its
        fence.
        """
        looked, named, found = self._scans.pop(number, (0, set(), Future()))
        if looked == fence:
            found.add_done_callback(partial(self._sweep_left, number, fence, named))

    def _sweep_left(
        self, number: int, fence: int, named: set[str], found: Future[list[Location]]
    ) -> None:
        if found.exception() is not None:
            return  # the store did not answer: a later sweep deletes them
        names = {one: name_of(one) for one in found.result()}
        written = {one: fence_of(name) for one, name in names.items() if name not in named}
        self.sweep(number, [one for one, by in written.items() if by is not None and by <= fence])

    def sweep_ended(self, number: int, rows: Sequence[Checkpoint]) -> None:
        """Delete the files of an ended trial that no row names; no process adds rows any more.

        Args:
            number: The trial's.
            rows: Its checkpoints, read after it had ended.
        """
        named = {name_of(row.path) for row in rows}
        self._scans.pop(number, None)
        self._queue.submit(partial(self._sweep_unnamed, number, named))

    def sweep_all_ended(self, ended: Iterable[int], rows: Sequence[Checkpoint]) -> None:
        """Delete such files of many ended trials; errors are ignored.

        Args:
            ended: The trials' numbers.
            rows: All checkpoints, read after these had ended.
        """
        of_trial: dict[int, list[Checkpoint]] = {number: [] for number in ended}
        for row in rows:
            if row.number in of_trial:
                of_trial[row.number].append(row)
        for number, own in of_trial.items():
            if self._folders.may_hold(number):
                self.sweep_ended(number, own)

    def sweep(self, number: int, locations: Sequence[Location]) -> None:
        """Delete files of a trial; errors are ignored.

        Args:
            number: The trial's.
            locations: The files; those that workers did not write stay.
        """
        for location in locations:
            if self._folders.may_delete(number, location):
                self._queue.submit(partial(self._sweep, number, location))

    def close(self, seconds: float) -> None:
        """Wait some time for the remaining deletions."""
        self._queue.close(seconds)

    def _sweep_unnamed(self, number: int, named: set[str]) -> None:
        for location in self._folders.written_files(number):
            if name_of(location) not in named:
                self._sweep(number, location)

    def _sweep(self, number: int, location: Location) -> None:
        try:
            remove(self._folders.local_path(number, location))
            remove(location)
        except OSError as error:
            if not self._warned:
                _logger.warning("Old checkpoints cannot be deleted and use space: %s.", error)
            self._warned = True
