"""The database does what it is asked, and its answer is lost on the way back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import objectives
import optuna
import pytest
import sqlalchemy as sa
from endings import run_until, saved
from tables import table_of

from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.files import intact

pytestmark = [pytest.mark.slow, pytest.mark.nightly_but(r"grant")]


@pytest.fixture
def lose_answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Lets a method of the table fail after it was done, for the n-th calls that are named."""

    def lose(method: str, calls: Callable[[int], bool]) -> list[int]:
        real = getattr(AllocationTable, method)
        count, lost = iter(range(10_000)), list[int]()

        def call(*args: Any, **kwargs: Any) -> Any:
            answer = real(*args, **kwargs)
            if answer is not None and calls(at := next(count)):
                lost.append(at)
                raise sa.exc.OperationalError("", {}, Exception("connection reset"))
            return answer

        monkeypatch.setattr(AllocationTable, method, call)
        return lost

    return lose


def test_a_grant_it_never_heard_of_does_not_idle_until_the_lease_ends(
    sqlite_study: optuna.Study, tmp_path: Path, lose_answers: Callable[..., list[int]]
) -> None:
    lose_answers("acquire", lambda call: call == 0)
    result = run_until(saved(5), sqlite_study, objectives.elastic, cpus=1, checkpoints=tmp_path)
    assert result.settled and result.value is not None and result.checkpoint_ok
    segments = table_of(sqlite_study).segments()
    assert segments[0].outcome == "disowned"
    assert {segment.outcome for segment in segments[1:]}.isdisjoint({"lost", "disowned"})


def test_a_worker_that_was_not_told_it_had_joined_joins_again(
    sqlite_study: optuna.Study, tmp_path: Path, lose_answers: Callable[..., list[int]]
) -> None:
    lose_answers("register", lambda call: call < 2)
    result = run_until(saved(2), sqlite_study, objectives.falling, cpus=2, checkpoints=tmp_path)
    assert result.settled and result.checkpoint_ok
    assert len(table_of(sqlite_study).slots()) == 2, "its first slots were offered again"


def test_every_checkpoint_in_the_table_is_on_disk_though_commits_were_repeated(
    sqlite_study: optuna.Study, tmp_path: Path, lose_answers: Callable[..., list[int]]
) -> None:
    lost = lose_answers("add_checkpoint", lambda call: call in (0, 7, 20))
    result = run_until(
        lambda _: lost == [0, 7, 20],
        sqlite_study,
        objectives.falling,
        cpus=1,
        checkpoints=tmp_path,
    )
    saved = table_of(sqlite_study).checkpoints()
    assert saved and all(intact(checkpoint) for checkpoint in saved)
    assert result.checkpoint_ok
