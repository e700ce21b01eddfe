"""A trainer that is not made for the trial's slots is refused before anything waits for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from elastic_harness import Plan, run_segment

pytestmark = [pytest.mark.slow, pytest.mark.nightly_but(r"named\[")]
OWN = "no trainer_options"


COUNTED = "leave devices, num_nodes and strategy out, and pass **deadline.trainer_options() to it"
STARTED = "starts its own processes"


@pytest.mark.parametrize(
    ("ranks", "options", "sentence"),
    [
        (1, {"devices": 2}, COUNTED),
        (1, {"devices": 2, "strategy": "ddp"}, COUNTED),
        (1, {"num_nodes": 2}, COUNTED),
        (2, {"devices": 1}, COUNTED),
        (2, {"devices": 3}, COUNTED),
        (2, {"devices": 1, "num_nodes": 2}, COUNTED),
        (2, {"devices": 2}, "divide the data between the slots a second time"),
        (1, {"devices": 2, "strategy": "ddp_spawn"}, STARTED),
        (1, {"devices": 2, "strategy": "ddp_notebook"}, STARTED),
        (2, {"devices": 2, "strategy": "ddp_spawn"}, STARTED),
    ],
    ids=str,
)
def test_other_devices_than_the_trials_are_refused_before_anything_waits(
    tmp_path: Path, ranks: int, options: dict[str, Any], sentence: str
) -> None:
    plan = Plan(str(tmp_path), ranks=ranks, extras=(OWN,), options={"accelerator": "cpu"})
    plan.options.update(options)
    for rank in run_segment(plan):  # one that waits is ended, without an error
        error = rank.get("error") or ""
        assert error.startswith("DeadlineError") and sentence in error
        assert rank["steps"] == []


def test_nor_does_a_validation_before_the_fit_wait(tmp_path: Path) -> None:
    options = {"accelerator": "cpu", "devices": 2}
    (rank,) = run_segment(Plan(str(tmp_path), extras=(OWN, "validate first"), options=options))
    assert COUNTED in (rank.get("error") or "")


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_trials_own_devices_are_taken_however_they_are_named(
    tmp_path: Path, ranks: int
) -> None:
    options = {"accelerator": "cpu", "devices": ranks, "use_distributed_sampler": False}
    plan = Plan(str(tmp_path), ranks=ranks, extras=(OWN, "validate first"), options=options)
    plan.epochs = 1
    assert [rank["error"] for rank in run_segment(plan)] == [None] * ranks
