"""What an inbox makes of the messages of ranks."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import optuna
import pytest

from optuna_deadline.allocation.records import Grant
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.directives import KEEP
from optuna_deadline.errors import StudyGone
from optuna_deadline.rank.messages import Message, NotSaved, Pausable, Question, Reported, Saved
from optuna_deadline.worker import outage
from optuna_deadline.worker.inbox import TrialInbox
from optuna_deadline.worker.outage import Outage
from optuna_deadline.worker.pending_writes import PendingWrites
from optuna_deadline.worker.rank_connection import Rank
from optuna_deadline.worker.sampling import TrialSampler
from optuna_deadline.worker.segment import Gang


class Silent:
    """A gang or a table of which nothing but its backlog is asked."""

    directive = KEEP

    def __init__(self) -> None:
        self.number, self.pending_writes, self.trained_before, self.grant = (
            0,
            PendingWrites(),
            0.0,
            None,
        )

    def add_reports(self, *args: object) -> None:
        """Recorded."""


@pytest.mark.parametrize(
    "message",
    [
        Question(1, "suggest_float", ("x", 0.0, 1.0), {}),
        Reported(0.5, 1, 1.0),
    ],
    ids=["a question", "a report"],
)
def test_a_deleted_study_is_no_mistake_of_the_objective(sqlite_url: str, message: Message) -> None:
    study = optuna.create_study(storage=sqlite_url)
    gang, rank = Silent(), cast(Rank, SimpleNamespace())
    hearing = TrialInbox(
        cast(AllocationTable, gang), "me", cast(Gang, gang), study.ask(), lambda *_: None,
        TrialSampler(study, lambda: None, lambda: True), Outage(),
    )  # fmt: skip
    hearing.receive(rank, message)
    optuna.delete_study(study_name=study.study_name, storage=sqlite_url)
    with pytest.raises(StudyGone, match="was deleted while the worker ran"):
        gang.pending_writes.write(hearing.store, hearing.copy_to_optuna, math.inf)


def _inbox(table: Any, saving: Outage | None = None) -> tuple[TrialInbox, Gang, Rank]:
    """The inbox of a trial, its gang, and a rank."""
    study = optuna.create_study()
    gang = Gang(cast(Grant, SimpleNamespace(number=0, fence=1)), 0, 0.0)
    sampler = TrialSampler(study, lambda: None, lambda: True)
    inbox = TrialInbox(
        table, "me", gang, study.ask(), lambda *_: None, sampler, saving or Outage()
    )
    return inbox, gang, cast(Rank, SimpleNamespace())


def test_the_table_knows_that_a_trial_cannot_be_paused_before_it_has_a_report() -> None:
    wrote: list[str] = []
    table: Any = SimpleNamespace(
        set_progress=lambda *_, pausable, **__: wrote.append(f"pausable {pausable}"),
        add_reports=lambda *_: wrote.append("report"),
    )
    inbox, gang, rank = _inbox(table)
    inbox.receive(rank, Pausable(False))
    inbox.receive(rank, Reported(0.5, 1, 1.0))
    gang.pending_writes.write(inbox.store, lambda _: None, math.inf)
    assert wrote == ["pausable False", "report"]


def test_a_full_disk_is_said_once_for_all_trials_and_again_when_it_is_over(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the checkpoint before it is written to the table later."""
    now = [1000.0]
    monkeypatch.setattr(outage, "time", SimpleNamespace(monotonic=lambda: now[0]))
    saving = Outage()
    table: Any = SimpleNamespace(add_checkpoint=lambda *_, **__: [])
    inbox, gang, rank = _inbox(table, saving)
    another, _, its_rank = _inbox(table, saving)
    saved = Saved("/a/b.ckpt", 3, 0.5, 1, "sha256:0")

    def new_lines() -> list[str]:
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    def fail(where: TrialInbox, step: int) -> None:
        why = f"[Errno 28] No space left on device: '/a/{step}.tmp'"
        where.receive(rank, NotSaved(step, why))

    inbox.receive(rank, saved)
    fail(inbox, 4)
    gang.pending_writes.write(inbox.store, lambda _: None, math.inf)
    fail(inbox, 5)
    fail(another, 5)
    [line] = new_lines()
    assert line.startswith("Trial 0 could not save step 4 ([Errno 28] No space left on device")
    now[0] += 7
    another.receive(its_rank, saved)
    assert new_lines() == ["Checkpoints can be saved again after 7 s."]
    fail(inbox, 7)
    another.receive(its_rank, replace(saved, step=6))
    assert new_lines() == [], "a disk that is full now and then fills no log"
    now[0] += 61
    fail(inbox, 8)
    assert len(new_lines()) == 1
