"""Means, sums and metrics are of the whole epoch, wherever in it a trial left and came back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from chains import chain, reports, trace
from elastic_harness import Plan, run_segment
from optuna_deadline_lightning.results import merged, share

pytestmark = pytest.mark.nightly_but(r"epoch\[resized|val_errors|load_without|divided_is_refused")

PLAN = Plan("", training="elastic_results", samples=99, batch=15)
EACH_STEP = [(1, 0)] * 60
MOVES = [(1, 4), (2, 9), (1, 13), (2, None)]


def means(segments: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [epoch for ranks in segments for epoch in ranks[0]["means"]]


@pytest.mark.slow
@pytest.mark.parametrize("moves", [EACH_STEP, MOVES], ids=["each step", "resized"])
def test_means_sums_and_metrics_are_of_the_whole_epoch(
    tmp_path: Path, moves: list[tuple[int, int | None]]
) -> None:
    still = chain(tmp_path / "still", PLAN, [(1, None)])
    moved = chain(tmp_path / "moved", PLAN, moves)
    assert trace(still[0]) == trace(moved[0])
    assert len(means(still[0])) == len(means(moved[0])) == PLAN.epochs
    tolerance = 0.0 if moves is EACH_STEP else 1e-6
    for wanted, found in zip(means(still[0]), means(moved[0]), strict=True):
        assert found == pytest.approx(wanted, abs=tolerance, rel=tolerance)
        assert found["total"] % PLAN.samples == 0 and len(found["samples"]) == PLAN.samples


@pytest.mark.slow
@pytest.mark.parametrize("monitor", ["val_errors", "val_sum", "val_correct", "val_gathered"])
def test_a_sum_that_is_monitored_is_the_same_on_any_number_of_slots(
    tmp_path: Path, monitor: str
) -> None:
    plan = replace(PLAN, epochs=1, monitor=monitor)
    one = chain(tmp_path / "one", plan, [(1, None)])
    two = chain(tmp_path / "two", plan, [(2, None)])
    assert reports(one[0]) == reports(two[0])
    assert one[0][0][0]["means"][0]["validated"] == 40


@pytest.mark.slow
def test_a_sample_that_pads_a_slots_part_of_a_batch_is_measured_once(tmp_path: Path) -> None:
    plan = replace(PLAN, samples=91)  # a last batch of one sample
    one = chain(tmp_path / "one", plan, [(1, None)])
    two = chain(tmp_path / "two", plan, [(2, None)])
    for wanted, found in zip(means(one[0]), means(two[0]), strict=True):
        assert found == pytest.approx(wanted, abs=1e-6, rel=1e-6)


@pytest.mark.slow
def test_sums_of_training_and_those_made_by_hand_are_told_on_several_slots(tmp_path: Path) -> None:
    plan = replace(PLAN, epochs=1, extras=("by hand",))
    chain(tmp_path / "one", plan, [(1, None)])
    chain(tmp_path / "two", plan, [(2, None)])
    logs = [(tmp_path / one / "rank-1-0.json.log").read_text() for one in ("one", "two")]
    assert "The sums that training logs" not in logs[0]
    assert logs[1].count("The sums that training logs (summed, unsynced) are added up") == 1
    extremes = "The extremes that training logs (largest, most, smallest) are taken over the slots"
    assert "The extremes" not in logs[0] and logs[1].count(extremes) == 1
    assert logs[1].count("calls torch.distributed.") == 1
    assert "elastic_results calls torch.distributed.all_reduce in validation" in logs[1]


@pytest.mark.slow
def test_a_validation_loader_that_is_divided_is_refused(tmp_path: Path) -> None:
    plan = replace(PLAN, folder=str(tmp_path), ranks=2, extras=("divided validation",))
    for rank in run_segment(plan):
        assert "every slot evaluates the whole validation set" in rank["error"]


@pytest.mark.slow
@pytest.mark.parametrize("moves", [EACH_STEP, MOVES], ids=["each step", "resized"])
def test_stopping_and_keeping_by_an_epochs_mean(
    tmp_path: Path, moves: list[tuple[int, int | None]]
) -> None:
    plan = replace(PLAN, epochs=12, extras=("stop by mean", "best mean"))
    still = chain(tmp_path / "still", plan, [(1, None)])
    moved = chain(tmp_path / "moved", plan, moves)
    assert trace(still[0]) == trace(moved[0])
    assert len(means(still[0])) < plan.epochs, "it stops early"
    [(_, best, *_)] = still[0][-1][0]["extras"].values()
    [(_, same, *_)] = moved[0][-1][0]["extras"].values()
    assert same == pytest.approx(best, abs=1e-9 if moves is EACH_STEP else 1e-6)


@pytest.mark.slow
def test_a_metric_that_cannot_be_shared_out_is_named_where_a_trial_moves(tmp_path: Path) -> None:
    plan = replace(PLAN, epochs=1, extras=("pearson",))
    still = chain(tmp_path / "still", plan, [(1, None)])
    paused = chain(tmp_path / "paused", plan, [(1, 4), (1, None)])
    assert means(paused[0]) == means(still[0])
    chain(tmp_path / "moved", plan, [(1, 4), (2, None)])
    logs = [(tmp_path / one / "rank-2-0.json.log").read_text() for one in ("paused", "moved")]
    assert "The metric 'pearson' combines" not in logs[0]
    assert "The metric 'pearson' combines" in logs[1]


@pytest.mark.slow
def test_checkpoints_load_without_pickled_code(tmp_path: Path) -> None:
    plan = replace(PLAN, folder=str(tmp_path), leave_at=4)
    left = run_segment(plan)[0]["published"][-1]["path"]
    results = torch.load(left, weights_only=True)["optuna_deadline"]["results"]
    assert results["logged"]["training_step.loss"]["samples"] == 4 * PLAN.batch


def entry(value: float, samples: float | None = None, fx: str = "mean") -> dict[str, Any]:
    count = None if samples is None else torch.tensor(samples, dtype=torch.float64)
    settings = {"on_epoch": True, "rank_zero_only": False, "reduce_fx": fx, "updates": 2}
    return {**settings, "value": torch.tensor(value), "samples": count}


def test_slots_add_up_to_what_they_were_given() -> None:
    parts: list[dict[str, Any]] = [
        {"logged": {"loss": entry(6.0, 7), "max": entry(1.0, fx="max")}, "metrics": {}},
        {"logged": {"loss": entry(4.0, 8), "max": entry(3.0, fx="max")}, "metrics": {}},
    ]
    for slots in (1, 2, 3):
        logged = merged(parts)["logged"]
        given = [{name: share(one, slots) for name, one in logged.items()} for _ in range(slots)]
        again = merged([{"logged": one, "metrics": {}} for one in given])["logged"]
        one = {name: share(entry, 1) for name, entry in again.items()}
        assert float(one["loss"]["value"]) == pytest.approx(10.0)
        assert one["loss"]["samples"].tolist() == 15
        assert one["loss"]["samples"].dtype == torch.int64
        assert all(float(rank["max"]["value"]) == 3.0 for rank in given)


def test_metrics_of_slots_are_combined_as_each_says() -> None:
    def metric(kind: str, state: Any) -> dict[str, Any]:
        one = {"states": {"state": state}, "kinds": {"state": kind}, "updates": 3, "whole": False}
        return {"logged": {}, "metrics": {"m": one}}

    def combined(kind: str, *states: Any) -> Any:
        return merged([metric(kind, state) for state in states])["metrics"]["m"]["states"]["state"]

    first, second = torch.tensor([1.0, 4.0]), torch.tensor([3.0, 2.0])
    assert combined("sum", first, second).tolist() == [4.0, 6.0]
    assert combined("mean", first, second).tolist() == [2.0, 3.0]
    assert combined("max", first, second).tolist() == [3.0, 4.0]
    assert combined("min", first, second).tolist() == [1.0, 2.0]
    assert combined("cat", first, second).tolist() == [1.0, 4.0, 3.0, 2.0]
    assert combined("cat", [first], [second, first]) == [first, second, first]
    assert combined("other", first, second) is first
