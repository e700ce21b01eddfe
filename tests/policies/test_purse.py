"""Purses: equal totals for searches, slots in time for work, and a floor for all."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.policies import Divider, EvenDivider, PoolSnapshot, PurseDivider, StudyView
from optuna_deadline.policies.pool.fair_share import whole_slots
from optuna_deadline.policies.pool.purse import purse_times

NOW = 10_000.0
PURSE = PurseDivider()


@st.composite
def pools(draw: st.DrawFn, weights: tuple[float, ...] = (0.3, 1.0, 1.0, 5.0)) -> PoolSnapshot:
    """A pool in any state: searches, work that is due, work that is late, and idle studies."""

    def view(number: int) -> StudyView:
        joined = NOW - draw(st.floats(0, 5e3))
        return StudyView(
            number,
            weight=draw(st.sampled_from(weights)),
            joined=joined,
            deadline=draw(st.sampled_from([math.inf, NOW + draw(st.floats(0.1, 2e4))])),
            slots=draw(st.integers(0, 4)),
            most=draw(st.integers(0, 12)),
            done=draw(st.floats(0, 1e4)),
            work=draw(st.none() | st.floats(0, 3e4)),
            span=draw(st.floats(0, 3e3)),
            restart=draw(st.sampled_from([0.0, 1.0, 40.0])),
            served=draw(st.floats(0, 1e3)),
            entitled=draw(st.floats(0, 1e3)),
            spent=draw(st.sampled_from([0.0, 0.5, 1.0, 1.1])),
            counted=draw(st.floats(joined, NOW)),
        )

    numbers = draw(st.permutations(range(draw(st.integers(0, 6)))))
    return PoolSnapshot(NOW, draw(st.integers(0, 16)), tuple(map(view, numbers)))


dividers = st.sampled_from([EvenDivider(), PURSE])


@given(pools(), dividers)
def test_no_more_than_needed_and_none_idle(pool: PoolSnapshot, divider: Divider) -> None:
    rates = divider.rates(pool)
    slots = whole_slots(pool, rates)
    used = min(pool.capacity, sum(study.most for study in pool.studies))
    assert sum(rates.values()) == pytest.approx(used) and sum(slots.values()) == used
    for study in pool.studies:
        assert -1e-9 <= rates[study.study_id] <= study.most + 1e-9
        assert abs(slots[study.study_id] - rates[study.study_id]) < 1 + 1e-6


@given(pools(), dividers, st.randoms())
def test_the_order_of_the_studies_does_not_matter(
    pool: PoolSnapshot, divider: Divider, random: object
) -> None:
    studies = list(pool.studies)
    random.shuffle(studies)  # type: ignore[attr-defined]
    again = divider.rates(replace(pool, studies=tuple(studies)))
    assert again == pytest.approx(divider.rates(pool), abs=1e-6)


@given(pools(), dividers)
def test_a_division_carried_out_stays(pool: PoolSnapshot, divider: Divider) -> None:
    slots = whole_slots(pool, divider.rates(pool))
    there = tuple(replace(study, slots=slots[study.study_id]) for study in pool.studies)
    again = replace(pool, studies=there)
    assert whole_slots(again, divider.rates(again)) == slots


@given(pools())
def test_no_study_has_less_than_its_floor_of_what_due_work_leaves(pool: PoolSnapshot) -> None:
    searches = tuple(replace(study, work=None) for study in pool.studies)
    pool = replace(pool, studies=searches)
    even, rates = EvenDivider().rates(pool), PURSE.rates(pool)
    assert all(rates[name] >= 0.5 * share - 1e-6 for name, share in even.items())


@given(pools(weights=(1.0,)))
def test_studies_that_are_alike_have_even_shares(pool: PoolSnapshot) -> None:
    alike = tuple(
        replace(study, joined=0.0, deadline=2e4, work=None, spent=0.0, counted=0.0)
        for study in pool.studies
    )
    pool = replace(pool, studies=alike)
    even = replace(pool, capacity=pool.capacity)
    if sum(study.most > 0 for study in alike) <= pool.capacity:
        # Without the least slot of even shares, which nothing needs here.
        assert PURSE.rates(pool) == pytest.approx(EvenDivider().rates(even), abs=1e-3)


def test_work_of_unknown_size_has_its_even_share() -> None:
    new = StudyView(1, joined=NOW, deadline=NOW + 1e7, most=8, work=0.0)
    searches = [StudyView(n, joined=NOW, deadline=NOW + 10.0, most=8) for n in (2, 3, 4)]
    pool = PoolSnapshot(NOW, 8, (new, *searches))
    assert PURSE.rates(pool)[1] == pytest.approx(2.0)
    assert PURSE.rates(replace(pool, studies=(replace(new, work=None), *searches)))[1] < 1.01


def test_a_turn_is_longer_where_a_move_is_dear() -> None:
    kept = StudyView(1, most=1, slots=1, served=100.0)
    waits = StudyView(2, most=1, entitled=100.0, restart=1.0)
    pool = PoolSnapshot(NOW, 1, (kept, waits))
    assert whole_slots(pool, {1: 0.5, 2: 0.5}) == {1: 0, 2: 1}
    dear = replace(pool, studies=(kept, replace(waits, restart=30.0)))
    assert whole_slots(dear, {1: 0.5, 2: 0.5}) == {1: 1, 2: 0}


def totals(
    divider: Divider,
    lasts: list[float],
    capacity: int = 8,
    step: float = 5.0,
    deadline: Callable[[int, float], float] | None = None,
) -> list[float]:
    """Slot-seconds of studies of one kind that follow each other in a pool which is always full.

    Args:
        divider: The divider.
        lasts: The times for which studies of each kind are in the pool.
        capacity: Slots.
        step: Seconds between two divisions.
        deadline: By kind and its age, the deadline that it names; its end by default.
    """
    views = [
        StudyView(kind, joined=0.0, deadline=last, most=capacity)
        for kind, last in enumerate(lasts)
    ]
    had = [0.0] * len(lasts)
    for tick in range(round(max(lasts) / step)):
        now = tick * step
        for kind, view in enumerate(views):
            age = now - view.joined
            if age >= lasts[kind]:
                views[kind] = view = replace(
                    view, joined=now, deadline=now + lasts[kind], spent=0.0, counted=now
                )
                age = 0.0
            if deadline is not None:
                views[kind] = view = replace(view, deadline=view.joined + deadline(kind, age))
            views[kind] = replace(view, counted=now)
        pool = PoolSnapshot(now, capacity, tuple(views))
        rates, times = divider.rates(pool), purse_times(pool)
        for kind, view in enumerate(views):
            had[kind] += step * rates[kind]
            views[kind] = replace(view, spent=view.spent + step / times[kind])
    return [total / (max(lasts) / last) for total, last in zip(had, lasts, strict=True)]


def test_totals_are_equal_where_even_shares_are_in_proportion_to_time() -> None:
    short, long = totals(PurseDivider(floor=0.0), [100.0, 400.0])
    assert short == pytest.approx(long, rel=0.05)
    short, long = totals(EvenDivider(), [100.0, 400.0])
    assert long == pytest.approx(4 * short, rel=0.01)


def test_a_deadline_that_is_extended_again_and_again_adds_nothing() -> None:
    """The second names a near deadline and moves it each time that it comes near."""
    lasts = [400.0, 400.0]
    honest, moving = totals(
        PurseDivider(floor=0.0),
        lasts,
        deadline=lambda kind, age: (
            400.0 if kind == 0 else min(400.0, 50.0 * (1 + (age + 10) // 50))
        ),
    )
    assert moving <= 1.05 * honest


@given(st.lists(st.tuples(st.floats(1, 400), st.floats(1.5, 6)), min_size=1, max_size=4))
def test_work_whose_least_slots_fit_is_in_time(kinds: list[tuple[float, float]]) -> None:
    """In the fluid: each has work of many trials, and time for it on its part of the pool."""
    capacity = 8
    parts = capacity / len(kinds)
    studies = {
        number: StudyView(
            number, deadline=1.04 * work * slack, most=capacity, work=work * parts, span=work / 200
        )
        for number, (work, slack) in enumerate(kinds)
    }
    search = StudyView(9, weight=1e6, deadline=1e5, most=capacity)
    now = 0.0
    while undone := [study.deadline for study in studies.values() if study.work]:
        step = min(undone) / 60
        pool = PoolSnapshot(now, capacity, (*studies.values(), search))
        rates = PURSE.rates(pool)
        now += step
        for number, study in studies.items():
            left = max(0.0, (study.work or 0.0) - step * rates[number])
            assert not left or now <= study.deadline
            studies[number] = replace(study, work=left, most=capacity if left else 0)
