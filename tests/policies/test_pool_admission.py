"""Can a pool's studies train what they expect to by their deadlines; who would have to give."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.policies import (
    Divider,
    EvenDivider,
    PoolSnapshot,
    PurseDivider,
    StudyView,
)
from optuna_deadline.policies.pool.admission import losing_studies, prospects, remedy

EVEN = EvenDivider()


def study(
    number: int, remaining: float | None, deadline: float = 100.0, most: int = 8, weight: float = 1
) -> StudyView:
    return StudyView(
        number, f"s{number}", weight=weight, deadline=deadline, most=most, remaining=remaining
    )


def test_alone_a_study_gets_what_it_can_use() -> None:
    [alone] = prospects(PoolSnapshot(0.0, 4, (study(1, 300.0),)), EVEN)
    assert alone.is_met and alone.expected == pytest.approx(300.0)
    [short] = prospects(PoolSnapshot(0.0, 4, (study(1, 500.0),)), EVEN)
    assert not short.is_met and short.expected == pytest.approx(400.0)
    assert remedy(PoolSnapshot(0.0, 4, (study(1, 500.0),)), 1, EVEN).extend == pytest.approx(
        25.0, abs=1.0
    )


def test_what_one_does_not_need_the_other_gets_when_it_is_done() -> None:
    """Two slots each for 50 s; then the second has all four."""
    pool = PoolSnapshot(0.0, 4, (study(1, 100.0), study(2, 290.0)))
    assert [p.expected for p in prospects(pool, EVEN)] == pytest.approx([100.0, 290.0])
    assert all(p.is_met for p in prospects(pool, EVEN))


def test_a_newcomer_that_takes_what_another_needs_is_known_at_once() -> None:
    """Who has the more weight is held; the other would need 25 s more, or as much weight."""
    pool = PoolSnapshot(0.0, 4, (study(1, 300.0), study(2, None)))
    [loser] = losing_studies(pool, newcomer=2, divider=EVEN)
    assert loser.study.name == "s1" and loser.expected == pytest.approx(200.0)
    found = remedy(pool, 1, EVEN)
    assert found.extend == pytest.approx(25.0, abs=1.0), "from 100 s on it has the pool alone"
    assert found.weight == 4 and found.losers == ()
    assert losing_studies(PoolSnapshot(0.0, 4, (study(1, 150.0), study(2, None))), 2, EVEN) == []


def test_a_remedy_names_who_would_lose_by_it() -> None:
    pool = PoolSnapshot(0.0, 4, (study(1, 300.0), study(2, 190.0)))
    found = remedy(pool, 1, EVEN)
    assert found.weight is not None and found.losers == ("s2",)


def test_where_no_weight_does_it_none_is_named() -> None:
    found = remedy(
        PoolSnapshot(0.0, 4, (study(1, 390.0, deadline=50.0), study(2, 190.0))), 1, EVEN
    )
    assert found.weight is None and found.extend > 0


def test_a_study_that_uses_what_it_gets_is_always_held() -> None:
    [greedy, other] = prospects(PoolSnapshot(0.0, 4, (study(1, 800.0), study(2, 50.0))), EVEN)
    assert greedy.needed is None and greedy.is_met and other.is_met


@given(
    st.integers(0, 16),
    st.lists(
        st.tuples(
            st.none() | st.floats(0, 2000), st.floats(1, 500), st.integers(0, 9),
            st.sampled_from([0.5, 1.0, 3.0]),
        ),
        max_size=5,
    ),
    st.sampled_from([EVEN, PurseDivider()]),
)  # fmt: skip
def test_nobody_gets_more_than_there_is_or_than_it_wants(
    capacity: int, drawn: list[tuple[float | None, float, int, float]], divider: Divider
) -> None:
    studies = tuple(study(n, *given) for n, given in enumerate(drawn))
    found = prospects(PoolSnapshot(0.0, capacity, studies), divider)
    longest = max((s.deadline for s in studies), default=0.0)
    assert sum(p.expected for p in found) <= capacity * longest * (1 + 1e-9) + 1e-6
    for prospect in found:
        limit = prospect.study.most * prospect.study.deadline
        wants = math.inf if prospect.needed is None else prospect.needed
        assert prospect.expected <= min(limit, wants) * (1 + 1e-6) + 1e-3


def test_the_prospects_are_those_of_the_divider() -> None:
    """A search of 25 s has four times the rate of one of 100 s, as long as it is there."""
    pool = PoolSnapshot(0.0, 10, (study(1, None, deadline=25.0), study(2, None)))
    assert [p.expected for p in prospects(pool, EVEN)] == pytest.approx([125.0, 725.0])
    short, long = (p.expected for p in prospects(pool, PurseDivider(floor=0.0)))
    assert (short, long) == pytest.approx((200.0, 8 * 75 + 2 * 25.0))


def test_work_that_is_due_is_held_beside_a_search() -> None:
    due = replace(study(1, 300.0), work=300.0, span=10.0)
    pool = PoolSnapshot(0.0, 4, (due, study(2, None, deadline=50.0)))
    assert [p.is_met for p in prospects(pool, PurseDivider())] == [True, True]
    assert losing_studies(pool, newcomer=2, divider=PurseDivider()) == []
