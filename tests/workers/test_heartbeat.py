"""The file that says that a worker's loop turns."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from optuna_deadline.elastic.heartbeat import HEARTBEAT_VARIABLE, heartbeat_file
from optuna_deadline.errors import DeadlineError


def test_it_beats_once_a_second_and_is_gone_at_the_end(tmp_path: Path) -> None:
    file, now = tmp_path / "pulse", [0.0]
    with heartbeat_file(str(file), clock=lambda: now[0]) as beat:
        assert file.exists()
        beats = []
        for now[0] in (0.3, 0.9, 1.1, 1.6, 2.2):
            os.utime(file, (0, 0))
            beat()
            beats.append(file.stat().st_mtime > 0)
        assert beats == [False, False, True, False, True]
        file.unlink()
    assert not file.exists()


def test_it_is_there_only_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(HEARTBEAT_VARIABLE, raising=False)
    with heartbeat_file() as beat:
        beat()
    monkeypatch.setenv(HEARTBEAT_VARIABLE, str(tmp_path / "there"))
    with heartbeat_file():
        assert (tmp_path / "there").exists()
    with (
        pytest.raises(DeadlineError, match="a file that this worker may write"),
        heartbeat_file("/no/where"),
    ):
        pass
