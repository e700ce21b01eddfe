"""Policies compared in one call: paired studies, a frame, a figure."""

from __future__ import annotations

from typing import Any

import pytest
from optuna.exceptions import ExperimentalWarning

from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies import AdaptiveHalving, Plan, Run, Snapshot
from optuna_deadline.simulation import Comparison, Workload, compare
from optuna_deadline.simulation.comparison import Estimate
from optuna_deadline.visualization import plot_comparison
from optuna_deadline.visualization._comparison import chart_comparison

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


class Remembering:
    """Trains all trials it may, and breaks if it has planned for another study before."""

    def __init__(self) -> None:
        self.deadline: float | None = None

    def plan(self, snapshot: Snapshot) -> Plan:
        assert self.deadline in (None, snapshot.deadline)
        self.deadline = snapshot.deadline
        alive = [trial.number for trial in snapshot.trials if trial.alive]
        runs = {n: Run(1, "trains") for n in alive[: snapshot.capacity]}
        return Plan(orders=runs, start=max(0, snapshot.capacity - len(alive)))


def compared(policies: Any, **options: Any) -> Comparison:
    return compare(policies, "crossing", **{"slots": 2, "seeds": 2, "steps": 9} | options)


def test_each_policy_has_the_same_studies() -> None:
    found = compared(["fifo", "fifo:n_trials=99", Remembering()], deadline="3x")
    frame = found.to_frame()
    assert [*frame.policy] == ["fifo", "fifo:n_trials=99", "Remembering"]
    assert [*frame.difference] == [0.0, 0.0, 0.0], "all three train the same trials"
    assert frame.regret_error.notna().all() and (frame.utilisation > 0.9).all()


def test_curves_of_the_users_own_are_compared_beside_a_family() -> None:
    own = Workload("mine", ((0.1, 0.9), (0.2, 0.3), (0.1, 0.2)), (50.0, 90.0, 50.0))
    rows = compare(["fifo"], [own, "crossing"], slots=1, seeds=3, steps=4, deadline="9x").rows
    assert [row.family for row in rows] == ["crossing", "mine"]
    assert rows[1].regret.mean == 0.0, "all three are trained"
    alone = compare({"first": "fifo", "again": "fifo"}, own, slots=1, seeds=8, deadline="1.2x")
    assert alone.rows[0].regret.error != 0.0, "another order for each seed"
    assert alone.rows[1].difference == Estimate(0.0, 0.0)


def test_policies_are_named_by_what_differs() -> None:
    both = compared([AdaptiveHalving(), AdaptiveHalving(min_resource=3)], seeds=1)
    assert [row.policy for row in both.rows] == [
        "adaptive_halving", "adaptive_halving:min_resource=3",
    ]  # fmt: skip
    named = compared({"mine": "fifo", "theirs": "fifo"}, seeds=1)
    assert [row.policy for row in named.rows] == ["mine", "theirs"]


@pytest.mark.parametrize(
    ("policies", "options", "says"),
    [
        (["fifo", "fifo"], {}, "Two policies are named 'fifo': name them, as in"),
        ([], {}, "There is no policy to compare"),
        (["magic"], {}, "no policy 'magic'"),
        (["fifo"], {"deadline": "0x"}, "leaves no time"),
        (["fifo"], {"deadline": "soon"}, "needs a duration"),
        ("fifo", {"slots": 0}, "slots must be a whole number from 1, but got 0"),
        ("fifo", {"seeds": 0}, "seeds must be a whole number from 1"),
    ],
)
def test_a_mistake_gets_one_sentence(policies: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(DeadlineError, match=says):
        compared(policies, **options)


class Mistaken:
    def plan(self, snapshot: Snapshot) -> Any:
        return [trial.number for trial in snapshot.trials]


def test_what_is_no_plan_is_named() -> None:
    with pytest.raises(TypeError, match="The policy Mistaken returned list; return a Plan"):
        compared(Mistaken(), seeds=1)


def test_the_figure_has_a_row_for_each_policy() -> None:
    found = compared(["fifo", "asha"])
    chart = chart_comparison(found)
    assert [name for _, name in chart.y_ticks] == ["asha", "fifo"], "the first is on top"
    assert "slots=2, deadline=4x, seeds=2" in chart.summary
    pytest.importorskip("plotly")
    assert len(plot_comparison(found).data) >= 2


def test_it_is_marked_as_what_may_change() -> None:
    with pytest.warns(ExperimentalWarning):
        compared(["fifo"])
