"""Progress is shown late, on terminals alone, and hides nothing that goes wrong."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator

import pytest
from rich.console import Console

from optuna_deadline.cli import progress


@pytest.fixture(params=[True, False], ids=["terminal", "pipe"])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Console:
    """What lasts 20 ms lasts long here."""
    console = Console(file=io.StringIO(), force_terminal=request.param, width=60)
    monkeypatch.setattr(progress, "console", console)
    monkeypatch.setattr(progress, "_QUIET", 0.02)
    return console


def slowly(count: int) -> Iterator[int]:
    for number in range(count):
        time.sleep(0.02)
        yield number


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_what_comes_one_by_one(screen: Console) -> None:
    assert list(progress.show_when_slow(slowly(4), "Simulating", 4)) == [0, 1, 2, 3]
    assert ("Simulating" in written(screen)) == screen.is_terminal
    before = len(written(screen))
    assert list(progress.show_when_slow(iter([7]), "Simulating", 1)) == [7]
    assert len(written(screen)) == before, "what is quick says nothing"


def test_what_is_waited_for(screen: Console) -> None:
    with pytest.raises(KeyError), progress.show_wait("Copying"):
        time.sleep(0.3)
        raise KeyError
    assert ("Copying" in written(screen)) == screen.is_terminal
    before = len(written(screen))
    with progress.show_wait("Copying"):
        pass
    assert "Copying" not in written(screen)[before:]
