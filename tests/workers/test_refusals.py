"""Training that is refused on several slots, or crashes there at once, goes on with fewer."""

from __future__ import annotations

import logging
import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from optuna_deadline.allocation.records import Assignment, Grant
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.rank.messages import End, Raised, Returned
from optuna_deadline.worker.outbox import Outbox
from optuna_deadline.worker.rank_connection import Rank
from optuna_deadline.worker.segment import Gang
from optuna_deadline.worker.slot_health import SlotHealth
from optuna_deadline.worker.verdict import (
    RankEnding,
    SegmentEnding,
    SegmentOutcome,
    decide_outcome,
)
from optuna_deadline.worker.warm_processes import WarmProcesses

CRASH = Raised("ValueError: no", "Traceback")


def ending(*ends: End | None, exit_code: int = -9, stepped: bool = False) -> SegmentEnding:
    """The ending of a segment whose ranks have ended so; None died of a signal."""
    grant = Grant(0, 0, 1, tuple((slot, 1) for slot in range(len(ends))), ("0",) * len(ends))
    ranks = [
        RankEnding(index, end, exit_code=exit_code if end is None else 0)
        for index, end in enumerate(ends)
    ]
    return SegmentEnding(grant, 0, tuple(ranks), stepped=stepped)


def limit(verdict: SegmentOutcome) -> tuple[int, str] | None:
    assert (verdict.state == "failed") == (verdict.slot_limit is None)
    assert verdict.slot_limit is None or (verdict.state, verdict.end_reason) == ("paused", "limit")
    return verdict.slot_limit


def test_a_first_crash_on_more_slots_than_before_goes_back_to_those() -> None:
    crashed = ending(CRASH, CRASH)
    for before, slots in ((0, 1), (1, 1)):
        assert limit(decide_outcome(crashed, lambda before=before: before)) == (
            slots,
            "On 2 slots the objective raised ValueError: no.",
        )
    assert decide_outcome(crashed).log_message.endswith("Traceback"), (
        "it is the user's own mistake perhaps"
    )
    assert limit(decide_outcome(ending(CRASH, CRASH, CRASH, CRASH), lambda: 3))[0] == 3  # type: ignore[index]


def test_what_fails_where_it_has_trained_fails() -> None:
    assert limit(decide_outcome(ending(CRASH), lambda: 0)) is None
    assert limit(decide_outcome(ending(CRASH, CRASH), lambda: 2)) is None
    assert limit(decide_outcome(ending(CRASH, CRASH, stepped=True), lambda: 1)) is None
    assert limit(decide_outcome(ending(Returned(float("nan")), Returned(0.0)), lambda: 1)) is None


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("DeadlineError: Pass a map-style dataset.", "Pass a map-style dataset."),
        (
            "ValueError: Expected more than 1 value per channel when training, got input size"
            " torch.Size([1, 4])",
            "BatchNorm needs two samples or more on each slot",
        ),
        (
            "ValueError: SyncBatchNorm layers only work with GPU modules",
            "SyncBatchNorm works on GPUs only",
        ),
        (
            "RuntimeError: Expected to have finished reduction in the prior iteration before"
            " starting a new one.",
            "Some parameters have no part in the loss",
        ),
        (
            "RuntimeError: It looks like your LightningModule has parameters that were not used"
            " in producing the loss returned by training_step.",
            "Some parameters have no part in the loss",
        ),
    ],
)
@pytest.mark.parametrize("stepped", [False, True])
def test_what_is_refused_on_several_slots_goes_on_with_one(
    line: str, sentence: str, stepped: bool
) -> None:
    refused = Raised(line, "Traceback")
    for ends in ((refused, refused), (refused, CRASH), (CRASH, refused), (None, refused)):
        found = limit(decide_outcome(ending(*ends, stepped=stepped), lambda: 2))
        assert found is not None and found[0] == 1 and sentence in found[1]
    assert decide_outcome(ending(refused)).state == "failed", "on one slot as well"


def test_a_native_crash_is_one_and_a_kill_is_bad_luck_until_it_has_no_other_end() -> None:
    crashed = decide_outcome(ending(None, None, exit_code=-signal.SIGSEGV), lambda: 1)
    assert crashed.slot_limit is not None and crashed.slot_limit[0] == 1
    assert crashed.slot_limit[1].startswith("On 2 slots a rank died (signal 11)")
    killed = ending(None, None)
    verdict = decide_outcome(killed, lambda: 1)
    assert (verdict.state, verdict.end_reason, verdict.failures) == ("paused", "died", 1)
    killed = replace(killed, failures=2)
    assert limit(decide_outcome(killed, lambda: 1)) is not None
    assert decide_outcome(killed, lambda: 2).state == "failed"


def test_the_limit_is_on_the_table_before_the_slots_are_free(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = MemoryTable("pool", 1, now=lambda: 1000.0, deadline=2000.0)
    slots = [slot.id for slot in table.register("me", "host", 1, [], 2)]
    term = table.elect_planner("me")
    assert term is not None
    table.open_trial("me", term, 0, 100)
    table.write_plan("me", term, [Assignment(0, "run", "me", 2, "test")])
    grant = table.acquire("me", 0, slots)
    assert grant is not None
    gang = Gang(grant, 0, 0.0)
    gang.inbox = cast(Any, SimpleNamespace(never_reported=True, store=None, copy_to_optuna=None))
    for index in range(2):
        rank = Rank(index, None, pid=1, end_message=CRASH, closed=True, exit_code=0)
        gang.ranks.append(rank)
    replanned: list[bool] = []
    writing = Outbox(
        table, "me", cast(WarmProcesses, None), lambda: replanned.append(True),
        SlotHealth(table, "me", 2),
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, "optuna_deadline"):
        gang.conclude()
        assert writing.flush(gang, leaving=False)
    [line] = table.trials()
    assert (line.state, line.slot_limit, line.owner) == ("paused", 1, None) and replanned
    assert line.limit_reason == "On 2 slots the objective raised ValueError: no."
    assert f"Trial 0 trains on one slot only: {line.limit_reason}" in caplog.messages
    kinds = [event.kind for event in table.events()]
    assert kinds.index("limit") < kinds.index("release")
