"""The file that says that a worker's loop turns."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from optuna_deadline.elastic.lifecycle import VARIABLE, pulse
from optuna_deadline.errors import DeadlineError


def test_it_beats_once_a_second_and_is_gone_at_the_end(tmp_path: Path) -> None:
    file, now = tmp_path / "pulse", [0.0]
    with pulse(str(file), clock=lambda: now[0]) as beat:
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
    monkeypatch.delenv(VARIABLE, raising=False)
    with pulse() as beat:
        beat()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "there"))
    with pulse():
        assert (tmp_path / "there").exists()
    with (
        pytest.raises(DeadlineError, match="a file that this worker may write"),
        pulse("/no/where"),
    ):
        pass
