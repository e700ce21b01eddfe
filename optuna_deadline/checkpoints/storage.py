"""Locations of checkpoints: in a folder, or under a URL that every host reaches.

A store is anything that fsspec opens: ``s3://bucket/folder``, ``gs://``, ``sftp://`` and so on. It
has no reliable rename or fsync and needs none: a file is written locally, uploaded under a unique
name, and only then gets its row in the table. A file without a row does not count.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from optuna_deadline.checkpoints.folders import TOP, is_packed
from optuna_deadline.errors import DeadlineError, spelled

#: The path of a local file, or the URL of another one.
Location = Path | str

_TORCH_BEFORE_1_6 = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_OF_TORCH_SAVER = re.compile(r"segment-\d+-step-\d+\.ckpt")

_LOCAL = ("file://", "local://")  # a local folder, spelled as a URL
_UNFIT = re.compile(r"[^\w.=+@-]")  # in the name of a folder, on a disk or under a URL
_NAME_LENGTH = 60  # characters, of at most four bytes: a study's name may be longer than a file's
_KEY_LENGTH = 8


class StoreAway(OSError):
    """The store does not answer, or refuses: the state of the file is unknown."""


def parse_location(text: str) -> Location:
    """Parse a location from its text."""
    for scheme in _LOCAL:
        if text.startswith(f"{scheme}/"):
            return Path(text.removeprefix(scheme))
    return text if "://" in text else Path(text)


def join_location(root: Location, name: str) -> Location:
    """A location below another one."""
    return root / name if isinstance(root, Path) else f"{root.rstrip('/')}/{name}"


def place_of(given: Location) -> Location:
    """The user's checkpoint location: a resolved folder, or a URL that was tested.

    Raises:
        DeadlineError: No file can be written there.
    """
    place = parse_location(os.fspath(given))
    if isinstance(place, str) and place.startswith(_LOCAL):
        raise DeadlineError(f"{place} is not a folder: write file:///folder, or /folder.")
    if isinstance(place, Path):
        place = place.resolve()
        check_folder(place)
        return place
    check(place)
    return place


def check_folder(folder: Path) -> None:
    """Check that files can be written: create a folder in it or around it, and delete that.

    A full disk is accepted, because it may have space when there is something to save.

    Raises:
        DeadlineError: They cannot.
    """
    there = folder
    while not there.exists():
        there = there.parent
    try:
        with tempfile.TemporaryDirectory(prefix=".probe-", dir=there):
            pass
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return
        raise DeadlineError(
            f"No checkpoint can be written to {folder} ({there}: {error.strerror}): name another "
            f"folder with {spelled('checkpoints=', '--checkpoints')}."
        ) from None


def root_of(place: Location, study_name: str, key: str) -> Location:
    """The location of one study's checkpoints, separate from others of its name.

    Args:
        place: The result of :func:`place_of`.
        study_name: The study's name; characters that a file's name cannot have are replaced.
        key: The study's random key.
    """
    name = f"{study_name[:_NAME_LENGTH]}-{key[:_KEY_LENGTH]}"
    return join_location(place, _UNFIT.sub("_", name))


def check(url: str) -> None:
    """Check that files can be written: write one, and delete it.

    Raises:
        DeadlineError: A package is missing, or the store refuses.
    """
    probe = join_location(url, f".probe-{uuid.uuid4().hex[:8]}")
    try:
        system, path = _system(str(probe))
        system.pipe_file(path, b"optuna-deadline")
        system.rm_file(path)
    except DeadlineError:
        raise
    except Exception as error:
        raise DeadlineError(
            f"No checkpoint can be written to {url} ({_describe_error(error)}): check "
            "its name and "
            "your credentials, or name a folder."
        ) from error


def library_name(location: Location) -> str | None:
    """The module that opens the store: imported once in the fork server."""
    if isinstance(location, Path):
        return None
    return type(_system(location)[0]).__module__.partition(".")[0]


def size(location: Location) -> int:
    """Bytes of a file.

    Raises:
        FileNotFoundError: It is not there.
        StoreAway: The store did not answer.
    """
    if isinstance(location, Path):
        return location.stat().st_size
    with _store_access(location) as (system, path):
        return int(system.info(path)["size"])


@contextmanager
def open_file(location: Location) -> Iterator[IO[bytes]]:
    """A file to read from its beginning; raises as :func:`size`."""
    if isinstance(location, Path):
        with location.open("rb") as file:
            yield file
    else:
        with _store_access(location) as (system, path), system.open(path, "rb") as file:
            yield file


def upload(path: Path, url: str) -> None:
    """Copy a file to the store; it is complete when this returns.

    Raises:
        StoreAway: It is not.
    """
    with _store_access(url) as (system, target):
        system.put_file(os.fspath(path), target)
        if int(system.info(target)["size"]) != path.stat().st_size:
            raise StoreAway(f"{url} is shorter than the uploaded file")


def fetch(location: Location, path: Path) -> None:
    """Copy a file from any location to ``path``; raises like :func:`size`."""
    if isinstance(location, Path):
        shutil.copyfile(location, path)
    else:
        with _store_access(location) as (system, source):
            system.get_file(source, os.fspath(path))


def remove(location: Location) -> None:
    """Delete a file, or a local folder, if it exists; raises like :func:`size`."""
    if isinstance(location, Path) and location.is_dir() and not location.is_symlink():
        shutil.rmtree(location)
    elif isinstance(location, Path):
        location.unlink(missing_ok=True)
    else:
        with suppress(FileNotFoundError), _store_access(location) as (system, path):
            system.rm_file(path)


def list_files(folder: Location) -> list[Location]:
    """The files in a folder, and folders in a local one; empty if it does not exist.

    Raises:
        StoreAway: The store did not answer.
    """
    try:
        if isinstance(folder, Path):
            return [*folder.iterdir()]
        with _store_access(folder) as (system, place):
            found = system.ls(place, detail=True)
    except FileNotFoundError:
        return []
    names = [one["name"].rstrip("/").rpartition("/")[2] for one in found if one["type"] == "file"]
    return [join_location(folder, name) for name in names]


def folder_of(location: Location) -> Location:
    """The folder of a file, or of a folder."""
    return location.parent if isinstance(location, Path) else location.rpartition("/")[0]


def name_of(location: Location) -> str:
    """The file's name."""
    return os.fspath(location).rpartition("/")[2]


def loading_code(location: Location, *, here: bool = True) -> str:
    """One line of Python that loads a checkpoint: with torch if ``torch.save`` wrote it.

    Args:
        location: The file.
        here: Whether it can be read; otherwise its name decides.
    """
    name = json.dumps(os.fspath(location), ensure_ascii=False)
    file = name if isinstance(location, Path) else f"fsspec.open({name}).open()"
    head = _head(location) if here else None
    if _is_torch(location, head):
        return f"checkpoint = torch.load({file}, weights_only=True)"
    opened_ = f"open({file}, 'rb')" if isinstance(location, Path) else file
    if head is not None and is_packed(head):
        return f"zipfile.ZipFile({opened_}).extractall()  # the folder {TOP!r}, as it was saved"
    return f"checkpoint = {opened_}.read()  # bytes, as the objective saved them"


def _head(location: Location) -> bytes | None:
    with suppress(OSError, DeadlineError), open_file(location) as file:
        return file.read(512)
    return None


def _is_torch(location: Location, head: bytes | None) -> bool:
    """Whether ``torch.save`` wrote a file, by its first bytes; else by its name."""
    if head is not None:
        length = int.from_bytes(head[26:28], "little")
        packed = head[:4] == b"PK\3\4" and head[30 : 30 + length].endswith(b"/data.pkl")
        return packed or head.startswith(_TORCH_BEFORE_1_6)
    return _OF_TORCH_SAVER.fullmatch(name_of(location)) is not None


@contextmanager
def _store_access(url: str) -> Iterator[tuple[Any, str]]:
    """Turn all errors of a store into one, except that a file does not exist."""
    try:
        yield _system(url)
    except (FileNotFoundError, StoreAway, DeadlineError):
        raise
    except Exception as error:
        raise StoreAway(f"{url}: {_describe_error(error)}") from error


def _system(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs

        # Others write there too, so a cached listing may be out of date.
        return url_to_fs(url, use_listings_cache=False)  # type: ignore[no-any-return]
    except ImportError as error:
        raise DeadlineError(
            f"Checkpoints at {url} need a library that is not installed ({error}): install"
            " optuna-deadline[remote], and for s3:// also s3fs."
        ) from error
    except ValueError as error:  # no such protocol
        raise DeadlineError(f"Nothing here can open {url}: {error}") from error


def _describe_error(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
