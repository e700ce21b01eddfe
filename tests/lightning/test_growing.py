"""Lightning fits whose batches grow with the slots, on real ranks."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chains import assert_same, chain, trace
from elastic_harness import Plan, run_segment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly_but(r"grown_and_shrunk\[linear|test_adascale|refused"),
]

BASE = 0.1
#: 6 batches in an epoch; on two slots 3 steps.
PLAN = Plan("", optimizer="sgd", schedule="", epochs=4)
MOVES: list[tuple[int, int | None]] = [(1, 4), (2, 8), (1, None)]
FACTORS = {"linear": 2.0, "sqrt": math.sqrt(2)}


def samples_by_epoch(segments: list[list[dict[str, Any]]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for epoch, *_, ids in trace(segments):
        found.setdefault(epoch, []).extend(ids)
    return {epoch: sorted(ids) for epoch, ids in found.items()}


@pytest.mark.parametrize("rule", ["linear", "sqrt"])
def test_grown_and_shrunk(tmp_path: Path, rule: str) -> None:
    segments, _ = chain(tmp_path / "moved", replace(PLAN, scaling=rule), MOVES)
    one, two, again = segments
    assert one[0]["rates"] == [BASE] * 4 and set(again[0]["rates"]) == {BASE}
    assert two[0]["rates"] == two[1]["rates"] == [BASE * FACTORS[rule]] * 4
    # 4 batches alone, then 1 + 3 steps of two: to the end of the second epoch.
    assert [(step["epoch"], step["batch"]) for step in two[0]["steps"]] == [
        (0, 4), (1, 0), (1, 1), (1, 2),
    ]  # fmt: skip
    assert samples_by_epoch(segments) == {epoch: [*range(96)] for epoch in range(4)}
    assert again[0]["global_step"] == 4 + 4 + 12
    reports = [step for ranks in segments for step, _ in ranks[0]["reports"]]
    assert reports == [0, 1, 2, 3], "one validation after each epoch"


def test_an_odd_batch_in_the_middle_and_at_the_end(tmp_path: Path) -> None:
    plan = replace(PLAN, scaling="linear", samples=70, epochs=2)  # 5 batches, the last one of 6
    segments, _ = chain(tmp_path / "moved", plan, [(1, 1), (2, None)])
    assert samples_by_epoch(segments) == {epoch: [*range(70)] for epoch in range(2)}
    # What is left over at an epoch's end is one batch, and has one batch's rate.
    assert segments[1][0]["rates"] == [2 * BASE] * 4 + [BASE]


@pytest.mark.parametrize("rule", ["linear", "adascale"])
@pytest.mark.parametrize("schedule", ["estimated", "epoch"])
def test_resumed_on_the_same_slots_bit_by_bit(tmp_path: Path, rule: str, schedule: str) -> None:
    plan = replace(PLAN, scaling=rule, schedule=schedule, dropout=0.3, workers=1)
    still = chain(tmp_path / "still", plan, [(2, None)])
    moved = chain(tmp_path / "moved", plan, [(2, 2), (2, 6), (2, None)])
    assert_same(still, moved, tolerance=0.0)
    assert still[0][0][0]["rates"] == [rate for ranks in moved[0] for rate in ranks[0]["rates"]]


@pytest.mark.parametrize("schedule", ["estimated", "epoch"])
def test_schedules_follow_the_samples(tmp_path: Path, schedule: str) -> None:
    plan = replace(PLAN, scaling="linear", schedule=schedule)
    still, _ = chain(tmp_path / "still", replace(plan, scaling=""), [(1, None)])
    by_place = {(step["epoch"], step["batch"]): step["lr"] for step in still[0][0]["steps"]}
    for number, moves in enumerate((MOVES, [(2, None)])):
        moved, _ = chain(tmp_path / str(number), plan, moves)
        done = 0
        for ranks in moved:
            for step, rate in zip(ranks[0]["steps"], ranks[0]["rates"], strict=True):
                lr = by_place[divmod(done, 6)]
                assert step["lr"] == pytest.approx(lr, rel=1e-12), "its own, outside of the step"
                assert rate == pytest.approx(lr * len(ranks), rel=1e-12)
                done += len(ranks)


def test_adascale(tmp_path: Path) -> None:
    plan = replace(PLAN, scaling="adascale", epochs=6, trainer={"gradient_clip_val": 0.5})
    segments, _ = chain(tmp_path / "moved", plan, [(1, 4), (2, 16), (1, None)])
    one, two, again = segments
    assert one[0]["rates"] == [BASE] * 4 and set(again[0]["rates"]) == {BASE}
    gains = [rate / BASE for rate in two[0]["rates"]]
    assert gains == [rate / BASE for rate in two[1]["rates"]], "all ranks have one gain"
    assert all(1.0 <= gain <= 2.0 for gain in gains) and 1.05 < sum(gains) / len(gains) < 1.99
    done = 4 + sum(gains) + len(again[0]["rates"])
    assert 36 <= done + 1e-6 < 37, "its gains sum up to 6 epochs of 6 batches"
    passes = samples_by_epoch(segments)
    assert [*passes] == [*range(len(passes))] and len(passes) >= 6
    assert all(ids == [*range(96)] for epoch, ids in passes.items() if epoch + 1 < len(passes))
    reports = [step for ranks in segments for step, _ in ranks[0]["reports"]]
    assert reports == [*range(len(passes))]
    assert again[0]["horizon"] == len(passes) - 1


@pytest.mark.parametrize("rule", ["linear", "adascale"])
def test_one_slot_is_bitwise_what_it_is_without_a_rule(tmp_path: Path, rule: str) -> None:
    plan = replace(PLAN, schedule="estimated", dropout=0.3)
    without = chain(tmp_path / "without", plan, [(1, None)])
    ruled = chain(tmp_path / "ruled", replace(plan, scaling=rule), [(1, 9), (1, None)])
    assert_same(without, ruled, tolerance=0.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scaling": "quadratic"}, "no scaling rule 'quadratic'"),
        ({"scaling": "adascale", "optimizer": "adam"}, "with Adam use scaling='sqrt'"),
        (
            {"scaling": "linear", "trainer": {"accumulate_grad_batches": 2}},
            "scaling='linear' needs accumulate_grad_batches=1",
        ),
        ({"scaling": "sqrt", "trainer": {"max_steps": 9}}, "max_epochs in place of max_steps"),
    ],
)
def test_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    (seen,) = run_segment(replace(PLAN, folder=str(tmp_path), **changes))
    assert words in (seen["error"] or ""), seen
