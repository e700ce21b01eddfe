"""Slots that come to models of their own end a trial's growth, not the trial or its exactness."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from chains import limited
from elastic_harness import Plan

pytestmark = [pytest.mark.slow, pytest.mark.nightly_but("anew")]

PLAN = Plan("", training="elastic_apart", schedule="")  # 6 steps in an epoch


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("gradients", "self.manual_backward"),
        ("rates", "scheduler such as ReduceLROnPlateau"),
    ],
)
@pytest.mark.parametrize("leave_at", [9, None], ids=["at a directive", "at a report"])
def test_nothing_of_slots_that_came_apart_is_kept(
    tmp_path: Path, what: str, words: str, leave_at: int | None
) -> None:
    plan = replace(PLAN, extras=(what,))
    still, reasons, _ = limited(tmp_path / "still", plan, [(1, None)])
    assert reasons == []
    moved, reasons, sizes = limited(
        tmp_path / "moved", plan, [(1, 4), (2, leave_at), (1, 13), (2, None)]
    )
    assert len(reasons) == 1 and words in reasons[0]
    assert sizes == [1, 2, 1, 1], "on one slot from then on"
    assert all(torch.equal(still[name], moved[name]) for name in still)


def test_a_trial_that_came_apart_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    plan = replace(PLAN, extras=("gradients",))
    still, _, _ = limited(tmp_path / "still", plan, [(1, None)])
    moved, _, sizes = limited(tmp_path / "moved", plan, [(2, 3), (1, None)])
    assert sizes == [2, 1] and all(torch.equal(still[name], moved[name]) for name in still)
