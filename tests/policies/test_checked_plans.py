"""A plan that cannot be carried out is refused with the policy's name, not somewhere below."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from optuna_deadline.forecasting.throughput import Overhead, Speedup
from optuna_deadline.policies import Pause, Plan, Retire, Run, Snapshot, TrialView
from optuna_deadline.policies.api import checked

SNAPSHOT = Snapshot(
    now=1.0, started=0.0, deadline=9.0, capacity=2, largest_gang=2,
    trials=(TrialView(0, "running", 1), TrialView(3, "paused")),
    speedup=Speedup({}), overhead=Overhead(1.0, 1.0),
)  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"orders": [0, 3]}, r"orders=\[0, 3\]; give a mapping"),
        ({"orders": {1: Pause("waits")}}, "an order for 1; the snapshot has no such trial"),
        ({"orders": {9: Pause("waits")}}, "an order for 9; the snapshot has no such trial"),
        ({"orders": {"0": Pause("waits")}}, "an order for '0'; the snapshot has no such trial"),
        ({"orders": {0: "run"}}, "'run' for trial 0; give Run, Pause or Retire"),
        ({"orders": {0: Run(0, "runs")}}, "Run.*for trial 0; give a whole number of slots"),
        ({"orders": {3: Run(1.5, "runs")}}, "Run.*for trial 3; give a whole number of slots"),  # type: ignore[arg-type]
        ({"start": -1}, "start=-1; give a whole number of new trials"),
        ({"start": 1.0}, "start=1.0; give a whole number of new trials"),
    ],
)
def test_it_is_refused_in_one_sentence(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"^The policy mine returned a plan with {says}"):
        checked(Plan(**wrong), "mine", SNAPSHOT)


def test_what_can_be_carried_out_is_taken() -> None:
    plan = Plan({0: Run(2, "runs"), 3: Retire("lost")}, start=1, looks={0: 4})
    assert checked(plan, "mine", SNAPSHOT) is plan
    assert checked(Plan(), "mine", SNAPSHOT) == Plan()


def test_numbers_of_numpy_become_those_that_databases_take() -> None:
    zero, two, three = map(np.int64, (0, 2, 3))
    given: Any = {zero: Run(two, "runs"), three: Pause("waits")}  # type: ignore[arg-type]
    plan = checked(Plan(given, start=two, looks={zero: three}), "mine", SNAPSHOT)  # type: ignore[arg-type, dict-item]
    assert plan == Plan({0: Run(2, "runs"), 3: Pause("waits")}, start=2)
    run = plan.orders[0]
    assert isinstance(run, Run)
    assert {type(n) for n in (plan.start, run.slots, *plan.orders, *plan.looks.values())} == {int}
