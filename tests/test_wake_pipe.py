"""A wait is ended by a pipe that never writes anywhere else."""

from __future__ import annotations

import os
import select
from pathlib import Path

from optuna_deadline._wake_pipe import WakePipe


def test_a_wait_ends_once_for_all_wakes_before_it() -> None:
    pipe = WakePipe()
    for _ in range(100_000):  # more than a pipe holds
        pipe.wake()
    assert select.select([pipe], [], [], 0)[0] == [pipe]
    while select.select([pipe], [], [], 0)[0]:
        pipe.drain()
    pipe.drain()
    pipe.close()


def test_a_wake_after_the_end_writes_into_no_file_that_has_its_number(tmp_path: Path) -> None:
    pipe = WakePipe()
    pipe.close()
    path = tmp_path / "study.db"
    files = [os.open(path, os.O_CREAT | os.O_RDWR) for _ in range(2)]  # the lowest free numbers
    pipe.wake()
    pipe.drain()
    pipe.close()
    assert path.read_bytes() == b""
    for file in files:
        os.write(file, b"open still")
        os.close(file)
