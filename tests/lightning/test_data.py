"""Training data of every kind goes on at its place, or the user is told what is repeated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from chains import assert_same, chain, trace
from elastic_harness import Plan, run_segment

pytestmark = [pytest.mark.slow, pytest.mark.nightly_but(r"stream_reports|begun_again_and")]

EACH_STEP = [(1, 0)] * 60


@pytest.mark.parametrize(
    "data",
    [
        "stateful stream",
        "resuming",
        "stream",
        "shuffled stream",
        "combined max_size",
        "combined max_size_cycle",
    ],
)
def test_left_after_every_single_step(tmp_path: Path, data: str) -> None:
    plan = Plan("", data=data)
    still = chain(tmp_path / "still", plan, [(1, None)])
    moved = chain(tmp_path / "moved", plan, EACH_STEP)
    assert len(moved[0]) > 8
    assert_same(still, moved, tolerance=0.0)
    if data != "stream":
        epochs = {
            epoch: [row[4] for row in trace(still[0]) if row[0] == epoch] for epoch in (0, 1)
        }
        assert epochs[0] != epochs[1], "each epoch has its own order"
    told = "is read again from an epoch's beginning" in log(tmp_path / "moved")
    assert told == (data in ("stream", "shuffled stream"))


def log(folder: Path) -> str:
    return (folder / "rank-2-0.json.log").read_text()


def test_a_stream_reports_each_epoch_and_may_be_left_at_each_ones_end(tmp_path: Path) -> None:
    plan = Plan("", data="stream")
    still = chain(tmp_path / "still", plan, [(1, None)])[0]
    moved = chain(tmp_path / "moved", plan, [(1, 6), (1, 12), (1, None)])[0]
    for segments in (still, moved):
        assert [step for [rank] in segments for step, _ in rank["reports"]] == [0, 1, 2]
    for [rank] in still:
        best = max(value for _, value in rank["reports"])
        saved = [one["value"] for one in rank["published"]]
        assert best in saved and rank["positions"][-1] == 3.0 == rank["horizon"] + 1


def test_within_an_epoch_a_short_loader_is_begun_again_in_a_new_order(tmp_path: Path) -> None:
    [[seen]] = chain(tmp_path / "one", Plan("", epochs=1, data="dict of two"), [(1, None)])[0]
    short = [step["ids"][16:] for step in seen["steps"]]  # of 4 batches, where the other has 6
    assert sorted(i for ids in short[:4] for i in ids) == list(range(96))
    assert short[4] != short[0] and len(short) == 6


def test_a_stream_among_several_is_begun_again_and_that_is_said(tmp_path: Path) -> None:
    plan = Plan("", epochs=1, data="list with a stream")
    segments, _ = chain(tmp_path / "moved", plan, [(1, 2), (1, None)])
    first, second = (segment[0]["steps"] for segment in segments)
    assert second[0]["ids"][16:] == first[0]["ids"][16:] == list(range(16))
    assert "cannot be distributed, so all of them begin again" in log(tmp_path / "moved")


def test_a_batch_that_the_objective_divides_by_the_slots_is_refused_at_an_epochs_end(
    tmp_path: Path,
) -> None:
    plan = Plan(str(tmp_path), data="divided", leave_at=0, trainer={"accumulate_grad_batches": 6})
    [first] = run_segment(plan)
    resume = first["published"][-1]["path"]
    for rank in run_segment(replace(plan, fence=2, ranks=2, resume=resume)):
        assert "pass the batch size of the whole step" in rank["error"] and rank["steps"] == []


def test_data_that_has_become_another_is_refused(tmp_path: Path) -> None:
    reload = {"reload_dataloaders_every_n_epochs": 1}
    plan = Plan(str(tmp_path), net="labels its data", training="elastic_nets", trainer=reload)
    [first] = run_segment(replace(plan, leave_at=2))
    resume = first["published"][-1]["path"]
    [again] = run_segment(replace(plan, fence=2, resume=resume))
    assert "is not what it was" in again["error"] and again["steps"] == []
