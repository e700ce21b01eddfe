"""Fair shares of a pool: whole slots, nothing wasted, nobody starved, no flapping."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies import EvenDivider, PoolSnapshot, StudyView
from optuna_deadline.policies.pool.fair_share import whole_slots
from optuna_deadline.policies.registry import make_divider

_weights = st.sampled_from([0.3, 1.0, 1.0, 2.0, 7.0])


@st.composite
def pools(draw: st.DrawFn, hungriest: int = 12) -> PoolSnapshot:
    """A pool in any state, studies that need nothing among its studies."""
    studies = tuple(
        StudyView(
            study_id,
            weight=draw(_weights),
            slots=draw(st.integers(0, 4)),
            most=draw(st.integers(0, hungriest)),
            served=draw(st.floats(0, 1000)),
            entitled=draw(st.floats(0, 1000)),
        )
        for study_id in draw(st.permutations(range(draw(st.integers(0, 6)))))
    )
    return PoolSnapshot(100.0, draw(st.integers(0, 16)), studies)


def even(pool: PoolSnapshot, quantum: float = 60.0) -> dict[int, int]:
    """Even shares in whole slots."""
    return whole_slots(pool, EvenDivider().rates(pool), quantum)


def two(capacity: int, first: StudyView, second: StudyView) -> list[int]:
    """The shares of two studies."""
    shares = even(PoolSnapshot(0.0, capacity, (first, second)))
    return [shares[first.study_id], shares[second.study_id]]


@given(pools())
def test_whole_slots_no_more_than_needed_and_none_idle(pool: PoolSnapshot) -> None:
    shares = even(pool)
    assert set(shares) == {study.study_id for study in pool.studies}
    assert all(0 <= shares[study.study_id] <= study.most for study in pool.studies)
    wanted = sum(study.most for study in pool.studies)
    assert sum(shares.values()) == min(pool.capacity, wanted)


@given(pools())
def test_nobody_starves_where_slots_suffice(pool: PoolSnapshot) -> None:
    needy = [study for study in pool.studies if study.most > 0]
    shares = even(pool)
    if len(needy) <= pool.capacity:
        assert all(shares[study.study_id] >= 1 for study in needy)


@given(pools())
def test_shares_are_fair_to_a_slot(pool: PoolSnapshot) -> None:
    fair, shares = EvenDivider().rates(pool), even(pool)
    assert all(abs(shares[study] - fair[study]) < 1 for study in fair)


@given(pools())
def test_fair_means_that_only_the_sated_get_less_by_weight(pool: PoolSnapshot) -> None:
    fair = EvenDivider().rates(pool)
    for poor in pool.studies:
        for rich in pool.studies:
            sated = fair[poor.study_id] >= poor.most - 1e-9
            owed_one = fair[rich.study_id] <= 1 + 1e-9
            if not sated and not owed_one:
                level = fair[poor.study_id] / poor.weight
                assert level >= fair[rich.study_id] / rich.weight - 1e-9


@given(pools(), st.randoms())
def test_the_order_of_the_studies_does_not_matter(pool: PoolSnapshot, random: object) -> None:
    studies = list(pool.studies)
    random.shuffle(studies)  # type: ignore[attr-defined]
    again = replace(pool, studies=tuple(studies))
    assert even(again) == even(pool)


@given(pools())
def test_a_division_carried_out_stays(pool: PoolSnapshot) -> None:
    shares = even(pool)
    studies = tuple(replace(study, slots=shares[study.study_id]) for study in pool.studies)
    assert even(replace(pool, studies=studies)) == shares


def test_weights_and_what_others_leave() -> None:
    a, b = StudyView(1, weight=3, most=8), StudyView(2, most=8)
    assert two(4, a, b) == [3, 1]
    assert two(8, a, replace(b, most=1)) == [7, 1]
    assert two(8, replace(a, most=2), b) == [2, 6]
    assert two(8, replace(a, most=0), b) == [0, 8]
    assert two(8, replace(a, most=2), replace(b, most=2)) == [2, 2]


def test_the_odd_slot_changes_hands_after_a_quantum_and_not_before() -> None:
    a, b = StudyView(1, most=8, slots=2), StudyView(2, most=8, slots=1)
    ahead, behind = replace(a, served=29), replace(b, entitled=29)
    assert two(3, ahead, behind) == [2, 1]
    assert two(3, replace(a, served=31), replace(b, entitled=31)) == [1, 2]


@given(
    st.lists(st.tuples(_weights, st.integers(1, 8)), min_size=1, max_size=7),
    st.integers(1, 10),
    st.sampled_from([0.0, 10.0, 60.0]),
    st.sampled_from([1.0, 5.0]),
)
def test_nobody_falls_behind_further_than_promised(
    kinds: list[tuple[float, int]], capacity: int, quantum: float, period: float
) -> None:
    studies = [StudyView(i, weight=weight, most=most) for i, (weight, most) in enumerate(kinds)]
    bound = (quantum + period) * (1 + math.log(len(studies)))
    fair = EvenDivider().rates(PoolSnapshot(0.0, capacity, tuple(studies)))
    waited = dict.fromkeys(fair, 0.0)
    for _ in range(150):
        shares = even(PoolSnapshot(0.0, capacity, tuple(studies)), quantum)
        for index, study in enumerate(studies):
            mine = shares[study.study_id]
            studies[index] = replace(
                study,
                slots=mine,
                served=study.served + period * mine,
                entitled=study.entitled + period * fair[study.study_id],
            )
            waited[study.study_id] = 0.0 if mine else waited[study.study_id] + period
            assert abs(studies[index].lag) <= bound
            assert waited[study.study_id] * fair[study.study_id] <= 2 * bound


def test_an_unknown_sharing_is_refused_with_those_there_are() -> None:
    with pytest.raises(DeadlineError, match=r"no sharing 'odd'; choose one of 'fair', 'even'"):
        make_divider("odd")
