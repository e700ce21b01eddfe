"""A budget is not exceeded, whatever its policy asks for, its prices do and its hosts suffer."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from paying import Played

from optuna_deadline.planning.billing.invoice import RELEASE_SECONDS

played = st.builds(
    Played,
    share=st.floats(0.01, 0.8),
    policy=st.sampled_from(["hypersched", "seer", "adaptive_halving", "asha"]),
    granularity=st.sampled_from([1.0, 20.0, 60.0]),
    minimum=st.sampled_from([0.0, 60.0]),
    node=st.sampled_from([1, 4]),
    faulty=st.booleans(),
    drained=st.none() | st.floats(0.05, 0.9),
    whim=st.none() | st.integers(0, 99),
    rises=st.lists(
        st.tuples(st.floats(0.01, 0.9), st.sampled_from(["dear", "cheap"]), st.floats(0.2, 5.0)),
        max_size=3,
    ).map(tuple),
)


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 6, phases=[Phase.explicit, Phase.generate])
@given(played)
def test_the_budget_is_not_exceeded(study: Played) -> None:
    study.play()
    # Where a rise leaves too little for the way out itself, that much is owed.
    owed = sum(
        8 * price * (RELEASE_SECONDS + max(study.granularity, 1.0))
        for now, end, price in study.ends
        if end <= now + RELEASE_SECONDS
    )
    assert study.spent <= study.budget.amount * (1 + 1e-9) + owed


def test_most_of_the_money_is_used() -> None:
    study = Played(share=0.41)  # four cheap slots and a dear one
    study.play()
    assert 0.9 * study.budget.amount < study.spent <= study.budget.amount


def test_a_cheaper_host_is_taken_first() -> None:
    study = Played(share=0.15)
    study.play()
    [first] = [e for e in study.world.table.events(kinds=["pool"]) if e.detail["before"] == 0][:1]
    assert first.detail["types"] == {"cheap": 2} or set(first.detail["types"]) == {"cheap"}


def test_after_a_rise_the_study_ends_sooner_and_within_its_budget() -> None:
    flat, risen = Played(share=0.4), Played(share=0.4, rises=((0.3, "cheap", 5.0),))
    for study in (flat, risen):
        study.play()
        assert study.spent <= study.budget.amount
    used = [sum(s.trained or 0 for s in study.world.table.segments()) for study in (flat, risen)]
    assert used[1] < 0.8 * used[0]
