"""Which checkpoint a trial goes on from, and how it comes to where the trial does."""

from __future__ import annotations

import io
import os
import threading
import uuid
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optuna_deadline.checkpoints import storage
from optuna_deadline.checkpoints.files import Checkpoint, checksum, intact, verified
from optuna_deadline.checkpoints.private import make_private
from optuna_deadline.checkpoints.restore import (
    CheckpointFetcher,
    CheckpointFolders,
    CheckpointSweeper,
)
from optuna_deadline.checkpoints.storage import (
    Location,
    StoreAway,
    join_location,
    parse_location,
    place_of,
)
from optuna_deadline.errors import DeadlineError

CONTENT = bytes(range(256)) * 9

#: What may have happened to a file since its row was written.
DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "none": lambda whole: whole,
    "cut": lambda whole: whole[:-1],
    "empty": lambda whole: b"",
    "flipped": lambda whole: whole[:100] + bytes([whole[100] ^ 4]) + whole[101:],
    "zeroed page": lambda whole: bytes(512) + whole[512:],
    "longer": lambda whole: whole + b"\0",
    "gone": lambda whole: None,
}


def put(location: Location, content: bytes | None) -> None:
    if isinstance(location, Path):
        location.parent.mkdir(parents=True, exist_ok=True)
        location.write_bytes(content or b"")
    else:
        import fsspec

        with fsspec.open(location, "wb") as file:
            file.write(content or b"")
    if content is None:
        storage.remove(location)


def file_name(step: int) -> str:
    return f"segment-000001-step-{step:09d}.ckpt"


def saved(
    root: Location, step: int, damage: str = "none", cached: Path | None = None
) -> Checkpoint:
    """A row, and what became of its file; ``cached`` is where it was written before its upload."""
    whole = bytes([step]) + CONTENT
    location = join_location(join_location(root, "trial-3"), file_name(step))
    put(location, whole)
    row = Checkpoint(3, 1, step, None, location, len(whole), checksum(location))
    put(location, DAMAGES[damage](whole))
    if cached is not None:
        put(cached / file_name(step), whole)
    return row


def found(
    root: Location, rows: list[Checkpoint], folders: CheckpointFolders | None = None
) -> Path | None:
    done = threading.Event()
    resuming = CheckpointFetcher(folders or CheckpointFolders(root), done.set)
    if not resuming.request(3, 1, rows):
        assert done.wait(20) and resuming.request(3, 1, rows)
    path = resuming.result(3)
    resuming.close()
    return path


@pytest.mark.parametrize("remote", [False, True])
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(damages=st.lists(st.sampled_from(sorted(DAMAGES)), max_size=4))
def test_the_newest_that_is_whole_is_found(
    tmp_path: Path, remote: bool, damages: list[str]
) -> None:
    name = uuid.uuid4().hex
    root: Location = f"memory://{name}" if remote else tmp_path / name
    rows = [saved(root, step, damage) for step, damage in enumerate(damages)][::-1]
    path = found(root, rows)
    whole = [step for step, damage in enumerate(damages) if damage == "none"]
    if not whole:
        assert path is None
    else:
        assert path is not None and path.read_bytes() == bytes([whole[-1]]) + CONTENT
    assert [intact(row) for row in rows] == [damage == "none" for damage in damages[::-1]]


def test_what_was_written_here_is_not_fetched(tmp_path: Path) -> None:
    root = f"memory://{uuid.uuid4().hex}"
    folders = CheckpointFolders(root)
    row = saved(root, 1, cached=folders.local_folder(3))
    storage.remove(row.path)
    path = found(root, [row], folders)
    assert path is not None and path.parent == folders.local_folder(3)
    path.write_bytes(b"torn")  # and a copy that is not whole is not taken for one
    assert found(root, [row], folders) is None
    folders.close()
    assert not path.parent.exists()


def test_the_ranks_can_write_beside_a_fetched_file_whatever_the_umask(tmp_path: Path) -> None:
    """They refuse a folder that others can write to."""
    root = f"memory://{uuid.uuid4().hex}"
    before = os.umask(0o002)
    try:
        path = found(root, [saved(root, 1)])
    finally:
        os.umask(before)
    assert path is not None
    make_private(path.parent)


class Stuck(CheckpointFolders):
    """A store that answers when it is let."""

    def __init__(self, root: Location) -> None:
        super().__init__(root)
        self.free = threading.Event()
        self.error: OSError | None = None

    def local_path(self, number: int, location: Location) -> Path:
        self.free.wait(20)
        if self.error is not None:
            raise self.error
        return super().local_path(number, location)


def test_nobody_waits_for_a_slow_store(tmp_path: Path) -> None:
    folders, done = Stuck(tmp_path), threading.Event()
    rows = [saved(tmp_path, 1)]
    resuming = CheckpointFetcher(folders, done.set)
    assert not resuming.request(3, 1, rows) and not resuming.request(3, 1, rows)
    folders.free.set()
    assert done.wait(20) and resuming.request(3, 1, rows)
    assert resuming.result(3) == rows[0].path


def test_a_store_that_is_away_is_no_reason_to_begin_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders = Stuck(tmp_path)
    folders.free.set()
    folders.error = StoreAway("no answer")
    rows = [saved(tmp_path, 1)]
    resuming = CheckpointFetcher(folders, lambda: None)
    assert not resuming.request(3, 1, rows) and not resuming.request(3, 1, rows)
    assert caplog.text.count("Trial 3 waits for its checkpoint: no answer.") == 1
    folders.error = None
    assert resuming.request(3, 1, rows) and resuming.result(3) == rows[0].path


def test_a_trial_that_trained_elsewhere_meanwhile_is_asked_anew(tmp_path: Path) -> None:
    resuming = CheckpointFetcher(CheckpointFolders(tmp_path), lambda: None)
    old, new = saved(tmp_path, 1), saved(tmp_path, 2)
    assert resuming.request(3, 1, [old])
    assert resuming.request(3, 2, [new, old])
    assert resuming.result(3) == new.path


def test_what_no_row_names_is_deleted_here_and_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = f"memory://{uuid.uuid4().hex}"
    folders = CheckpointFolders(root)
    rows = [saved(root, step, cached=folders.local_folder(3)) for step in range(3)]
    sweeping = CheckpointSweeper(folders)
    sweeping.sweep(3, [row.path for row in rows[:2]])
    sweeping.sweep(3, [rows[0].path])  # told twice
    sweeping.close(20)
    assert [verified(row) for row in rows] == [False, False, True]
    assert [file.name for file in folders.local_folder(3).iterdir()] == [file_name(2)]
    sweeping = CheckpointSweeper(CheckpointFolders(tmp_path))
    (tmp_path / "trial-3").write_text("in the way")
    file = tmp_path / "trial-3" / file_name(4)
    sweeping.sweep(3, [file, file])
    sweeping.close(20)
    assert caplog.text.count("Old checkpoints cannot be deleted and use space") == 1


def test_a_forged_file_of_the_same_size_and_crc_is_refused(tmp_path: Path) -> None:
    """A CRC-32 can be forged: any four bytes of a file give it any value."""
    row = saved(tmp_path, 1)
    assert verified(row)
    wanted, forged = zlib.crc32(bytes([1]) + CONTENT), b"\x02" + CONTENT[:-4]
    forged += forged_end(forged, wanted)
    assert len(forged) == row.size and zlib.crc32(forged) == wanted
    put(row.path, forged)
    assert not verified(row)
    weak = row._replace(checksum=f"crc32:{wanted:08x}")
    assert not verified(weak), "a weak digest in a row counts for nothing"


def forged_end(content: bytes, wanted: int) -> bytes:
    """Four bytes after which the CRC-32 has a wanted value: it is linear over GF(2)."""
    zero = zlib.crc32(content + bytes(4))
    basis = [zlib.crc32(content + (1 << bit).to_bytes(4, "little")) ^ zero for bit in range(32)]
    rows = [(value, 1 << bit) for bit, value in enumerate(basis)]
    target, chosen = zero ^ wanted, 0
    for bit in range(31, -1, -1):
        pivot = next((row for row in rows if row[0] >> bit & 1), None)
        if pivot is None:
            continue
        rows = [
            (value ^ pivot[0], bits ^ pivot[1]) if value >> bit & 1 else (value, bits)
            for value, bits in rows
            if (value, bits) != pivot
        ]
        if target >> bit & 1:
            target, chosen = target ^ pivot[0], chosen ^ pivot[1]
    assert target == 0
    return chosen.to_bytes(4, "little")


def packed(name: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, CONTENT)
    return file.getvalue()


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize(
    "content",
    [b"", b'{"epoch": 3}', CONTENT, packed("arr_0.npy")],
    ids=["empty", "JSON", "bytes", "NumPy's"],
)
def test_a_file_that_is_not_torchs_is_read_as_bytes(
    tmp_path: Path, remote: bool, content: bytes
) -> None:
    root: Location = f"memory://{uuid.uuid4().hex}" if remote else tmp_path
    location = join_location(root, 'a "file".ckpt')
    put(location, content)
    line = storage.loading_code(location)
    assert "torch.load" not in line
    found: dict[str, Any] = {"fsspec": fsspec}
    exec(line, found)
    assert found["checkpoint"] == content


def test_torchs_files_are_known_by_their_first_bytes_else_by_the_savers_names(
    tmp_path: Path,
) -> None:
    location = tmp_path / "a.ckpt"
    put(location, packed("best/data.pkl"))
    assert storage.loading_code(location) == (
        f'checkpoint = torch.load("{location}", weights_only=True)'
    )
    for gone in (tmp_path / file_name(3), f"memory://{uuid.uuid4().hex}/{file_name(3)}"):
        assert "torch.load(" in storage.loading_code(gone)
        assert "torch.load(" in storage.loading_code(gone, here=False)
    assert "torch.load(" not in storage.loading_code(tmp_path / "3-12-ab12.ckpt")


@pytest.mark.parametrize("given", ["/shared", "s3://bucket/shared/"])
@pytest.mark.parametrize("study", ["digits", "a/b", "..", "/etc", "", "数" * 512, "a b?#%"])
def test_a_studys_folder_is_its_own_whatever_its_name_is(given: str, study: str) -> None:
    place = parse_location(given)
    first, second = (storage.root_of(place, study, f"{key}2b3c4d-") for key in ("1a", "/.."))
    assert first != second
    for root in (first, second):
        assert str(root).startswith(f"{str(place).rstrip('/')}/")
        name = storage.name_of(root)
        assert join_location(place, name) == root and name not in ("", ".", "..")
        assert len(name.encode()) < 255


def test_places_that_cannot_be_used_are_told() -> None:
    with pytest.raises(DeadlineError, match="Nothing here can open nowhere://"):
        storage.check("nowhere://bucket")
    assert parse_location("s3://bucket/key") == "s3://bucket/key"
    assert parse_location("here/key") == Path("here/key")
    assert join_location("s3://bucket/", "key") == "s3://bucket/key"


def test_a_folder_may_be_spelled_as_a_url(tmp_path: Path) -> None:
    assert place_of(f"file://{tmp_path}") == tmp_path.resolve()
    with pytest.raises(DeadlineError, match=r"is not a folder: write file:///folder"):
        place_of("file://folder")
