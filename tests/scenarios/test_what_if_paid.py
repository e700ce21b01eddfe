"""What-ifs of studies whose slots are priced by the type of their host."""

from __future__ import annotations

import pytest
from paying import Played

from optuna_deadline.history.series import costs
from optuna_deadline.policies import make_policy
from optuna_deadline.scenarios.comparison import Scenario
from optuna_deadline.scenarios.futures import Change, make_world
from optuna_deadline.scenarios.initial_state import InitialState
from optuna_deadline.visualization._budget import chart_budget

pytestmark = [
    pytest.mark.slow_names(r"^test_the_rest_is_paid.*seer"),
    pytest.mark.nightly_but(r"^$"),
]


def make(policy: str, **given: object) -> Played:
    study = Played(policy=policy, share=0.4, stopped=0.5, **given)  # type: ignore[arg-type]
    study.play()
    return study


@pytest.mark.parametrize("policy", ["seer", "hypersched"])
def test_the_rest_is_paid_by_host_type_and_within_the_budget(policy: str) -> None:
    history = make(policy).history
    question = Scenario(history, Change(money=1000.0), draws=2)
    answer = question.answer(list(question.pairs(1e9)))
    used = costs(history).spent
    assert used is not None and history.budget is not None
    assert answer.as_it_is.spent is not None and answer.changed is not None
    assert answer.changed.spent is not None
    assert used < answer.as_it_is.spent <= history.budget.amount
    assert answer.as_it_is.spent <= answer.changed.spent <= history.budget.amount + 1000
    # A policy without a pool of its own keeps the one that it was given.
    assert policy != "seer" or answer.as_it_is.spent < answer.changed.spent


def test_the_rest_knows_types_and_the_price_that_was_told_last() -> None:
    history = make("hypersched", rises=((0.3, "cheap", 5.0),)).history
    present = InitialState.of(history)
    question = Scenario(history, draws=1)
    policy = make_policy(history.policy, history.parameters)
    world = make_world(present, question._rests.draw(0), Change(), policy)
    while world.timeline.now() < present.now + 30:
        assert world.timeline.advance()
    assert world.budget_account is not None
    now = world.timeline.now()
    world.budget_account.read(now)
    kinds = {
        worker.host: world.budget_account.host_type(worker.id) for worker in world.table.workers()
    }
    assert kinds == {"machine0": "dear", "machine1": "cheap"}
    assert world.budget_account.price("cheap", now) == pytest.approx(5.0)
    assert world.budget_account.price("dear", now) == pytest.approx(4.0)


def test_the_figure_marks_when_prices_change() -> None:
    history = make("hypersched", rises=((0.3, "cheap", 5.0),)).history
    assert "cheap 18000" in [mark.words for mark in chart_budget(history).marks]
