"""A hand-written loop that moves between slots trains as if it had never moved: real ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from chains import assert_same, chain, limited
from elastic_harness import LEFT, Plan, run_segment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly_but(r"sigterm.*1|resized_in.*4|adds_up.*4|dropout"),
]

PLAN = Plan("", training="loop_training")  # 6 batches in an epoch


@pytest.mark.parametrize("reports", [1, 4])
def test_resized_in_and_at_the_end_of_epochs(tmp_path: Path, reports: int) -> None:
    plan = replace(PLAN, batch=17, reports=reports)  # slices of unequal length
    still = chain(tmp_path / "still", plan, [(1, None)])
    moved = chain(tmp_path / "moved", plan, [(1, 4), (2, 6), (1, 9), (2, 12), (1, None)])
    assert len(moved[0]) == 5
    assert_same(still, moved)


def test_same_slots_same_dropout_bit_by_bit(tmp_path: Path) -> None:
    plan = replace(PLAN, dropout=0.5)
    still = chain(tmp_path / "still", plan, [(2, None)])
    moved = chain(tmp_path / "moved", plan, [(2, 4), (2, 6), (2, None)])
    assert_same(still, moved, tolerance=0.0)


@pytest.mark.parametrize("term_rank", [0, 1])
def test_sigterm_on_one_of_two_ranks(tmp_path: Path, term_rank: int) -> None:
    plan = replace(PLAN, folder=str(tmp_path), ranks=2, leave_at=9, term_rank=term_rank)
    seen = run_segment(plan)
    for rank in seen:
        assert rank["exitcode"] == LEFT and rank["left"][0] == "pause", rank
        assert len(rank["steps"]) == 9, "the step that the signal came in is the last"
    newest = torch.load(seen[0]["published"][-1]["path"], weights_only=True)
    assert newest["optuna_deadline"]["steps"] == 9


def test_stopped_without_a_checkpoint(tmp_path: Path) -> None:
    plan = replace(PLAN, folder=str(tmp_path), ranks=2, leave_at=4, kind="stop")
    seen = run_segment(plan)
    assert seen[0]["left"] == ["stop", "as scripted", 7]
    assert [(rank["exitcode"], len(rank["steps"])) for rank in seen] == [(LEFT, 4)] * 2
    assert not list(tmp_path.glob("*.ckpt")) and not seen[0]["published"]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (replace(PLAN, extras=("beside",)), "call `loop.model(x)` in place of `model(x)`"),
        (replace(PLAN, schedule="plateau of losses"), "scheduler such as ReduceLROnPlateau"),
    ],
    ids=["gradients", "rates"],
)
@pytest.mark.parametrize("leave_at", [9, None], ids=["at a directive", "at a report"])
def test_nothing_of_slots_that_came_apart_is_kept(
    tmp_path: Path, plan: Plan, words: str, leave_at: int | None
) -> None:
    still, _, _ = limited(tmp_path / "still", plan, [(1, None)])
    moved, reasons, sizes = limited(
        tmp_path / "moved", plan, [(1, 4), (2, leave_at), (1, 13), (2, None)]
    )
    assert len(reasons) == 1 and words in reasons[0]
    assert sizes == [1, 2, 1, 1], "on one slot from then on"
    assert all(torch.equal(still[name], moved[name]) for name in still)


@pytest.mark.parametrize("reports", [1, 4])
def test_a_metric_adds_up_divided_batches_and_no_evaluation(tmp_path: Path, reports: int) -> None:
    plan = replace(PLAN, reports=reports, samples=97, extras=("measured",))  # the last one pads
    one = chain(tmp_path / "one", plan, [(1, None)])
    two = chain(tmp_path / "two", plan, [(2, None)])
    assert_same(one, two)
    for ranks in (*one[0], *two[0]):
        assert all(rank["measured"] == [sum(range(97))] * plan.epochs for rank in ranks)


def test_loaders_beside_the_first_one_are_dealt_too(tmp_path: Path) -> None:
    plan = replace(PLAN, data="beside", samples=96)
    still = chain(tmp_path / "still", plan, [(1, None)])
    moved = chain(tmp_path / "moved", plan, [(1, 4), (2, 9), (1, 13), (2, None)])
    assert len(moved[0]) == 4
    assert_same(still, moved)


def test_loaders_whose_batches_are_not_shared_alike_are_refused_before_a_step(
    tmp_path: Path,
) -> None:
    plan = replace(PLAN, data="beside", samples=97, ranks=2, folder=str(tmp_path))
    for rank in run_segment(plan):
        assert "one loss cannot be weighed" in rank["error"] and not rank["steps"]
