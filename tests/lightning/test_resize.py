"""A trial that moves between slots trains as if it had never moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chains import assert_same, chain, reports, trace
from elastic_harness import Plan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly_but(r"changing_slots|last_batch.*epoch 0"),
]


MOVES = [(1, 4), (2, 9), (1, 13), (2, None)]  # 6 steps per epoch: all in the middle of one


def test_resized_with_an_explicit_loader(tmp_path: Path) -> None:
    plan = Plan("", batch=17, drop_last=True, explicit=True, workers=1, estimate=True)
    still = chain(tmp_path / "still", plan, [(1, None)])
    moved = chain(tmp_path / "moved", plan, MOVES)
    assert len(moved[0]) == len(MOVES)
    assert_same(still, moved)
    shuffled = [row[4] for row in trace(still[0])]
    assert shuffled[:5] != shuffled[6:11], "each epoch has its own order"


def test_as_many_slots_from_the_beginning(tmp_path: Path) -> None:
    assert_same(
        chain(tmp_path / "one", Plan(""), [(1, None)]),
        chain(tmp_path / "two", Plan(""), [(2, None)]),
    )


@pytest.mark.parametrize(
    ("trainer", "steps"),
    [
        pytest.param({}, [0, 1, 2, 3], id="validation after each epoch"),
        pytest.param({"val_check_interval": 0.5}, [*range(8)], id="twice per epoch"),
        pytest.param({"val_check_interval": 4}, [0, 2, 3, 5], id="at batch 4 of each epoch"),
        pytest.param({"check_val_every_n_epoch": 2}, [1, 3], id="every second epoch"),
        pytest.param(
            {"val_check_interval": 4, "check_val_every_n_epoch": None},
            [*range(6)],
            id="every 4 batches",
        ),
        pytest.param({"max_steps": 15}, [0, 1], id="max_steps"),
        pytest.param({"accumulate_grad_batches": 4}, [0, 1, 2, 3], id="accumulated gradients"),
        pytest.param({"limit_train_batches": 5}, [0, 1, 2, 3], id="limited batches"),
    ],
)
def test_left_after_every_single_step(
    tmp_path: Path, trainer: dict[str, Any], steps: list[int]
) -> None:
    """Each segment is one step long where a step may be left: every boundary is crossed."""
    plan = Plan("", epochs=4, optimizer="sgd", trainer=trainer)
    still = chain(tmp_path / "still", plan, [(1, None)])
    moved = chain(tmp_path / "moved", plan, [(1, 0)] * 40)
    assert len(moved[0]) > 4
    assert_same(still, moved)
    assert [step for step, _ in reports(still[0])] == steps
    assert {ranks[0]["horizon"] for ranks in [*still[0], *moved[0]]} == {steps[-1]}
    # What the pace is learned from is in steps too.
    positions = still[0][0][0]["positions"]
    assert positions == sorted(positions) and positions[-1] <= steps[-1] + 2


@pytest.mark.parametrize("ranks", [1, 2])
def test_left_at_a_validation_before_an_accumulation_has_ended(tmp_path: Path, ranks: int) -> None:
    trainer = {"accumulate_grad_batches": 4, "val_check_interval": 3}
    plan = Plan("", epochs=2, trainer=trainer)
    still = chain(tmp_path / "still", plan, [(1, None)])
    moved = chain(tmp_path / "moved", plan, [(ranks, 0), (1, 0)] * 4)
    assert len(moved[0]) == 6  # two validations and a step between them, in each epoch
    assert_same(still, moved, tolerance=0.0 if ranks == 1 else 1e-9)


def test_left_after_every_step_with_changing_slots(tmp_path: Path) -> None:
    plan = Plan("", epochs=2)
    still = chain(tmp_path / "still", plan, [(1, None)])
    moved = chain(tmp_path / "moved", plan, [(1, 0), (2, 0)] * 20)
    assert_same(still, moved)


@pytest.mark.parametrize("last", [6, 12], ids=["of epoch 0", "of epoch 1"])
def test_told_at_the_last_batch_of_an_epoch(tmp_path: Path, last: int) -> None:
    """The validation that follows is not lost: the trial leaves after it, with its value."""
    plan = Plan("")
    still = chain(tmp_path / "still", plan, [(1, None)])
    moved = chain(tmp_path / "moved", plan, [(2, last), (1, None)])
    leaving = moved[0][0][0]
    assert len(leaving["steps"]) == last
    assert leaving["published"][-1]["value"] == leaving["reports"][-1][1]
    assert_same(still, moved)


def test_same_slots_same_dropout(tmp_path: Path) -> None:
    plan = Plan("", dropout=0.5)
    still = chain(tmp_path / "still", plan, [(2, None)])
    moved = chain(tmp_path / "moved", plan, [(2, 4), (2, 9), (2, None)])
    assert_same(still, moved, tolerance=0.0)
