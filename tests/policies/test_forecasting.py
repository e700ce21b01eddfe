"""S(k) and overheads, learned from segments."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.forecasting.throughput import (
    PRIOR_EXPONENT_OF_CPUS,
    PRIOR_STARTUP,
    SegmentPace,
    Speedup,
    Throughputs,
    learn_overhead,
    learn_throughputs,
)


def test_speedup_is_the_median_ratio_within_trials() -> None:
    paces = [
        SegmentPace(0, 1, 10, 10), SegmentPace(0, 2, 18, 10),   # 1.8
        SegmentPace(1, 1, 100, 10), SegmentPace(1, 2, 160, 10),  # 1.6, ten times as fast a trial
        SegmentPace(2, 1, 1, 10), SegmentPace(2, 2, 1, 10),      # 1.0
    ]  # fmt: skip
    assert learn_throughputs(paces).speedup.measured == {2: pytest.approx(1.6)}


@given(st.dictionaries(st.integers(2, 16), st.floats(0.2, 16)), st.integers(1, 64))
def test_speedup_passes_through_what_was_measured(measured: dict[int, float], slots: int) -> None:
    speedup = Speedup(measured)
    assert speedup(1) == 1.0 and speedup(0) == 0.0
    assert all(speedup(k) == value for k, value in measured.items())
    assert speedup(slots) > 0


@given(st.dictionaries(st.integers(2, 16), st.floats(0.2, 16)))
def test_useful_sizes_gain_a_tenth_each(measured: dict[int, float]) -> None:
    speedup = Speedup(measured)
    sizes = speedup.useful(16)
    assert sizes[0] == 1
    for smaller, larger in pairwise(sizes):
        assert speedup(larger) >= 1.1 * speedup(smaller)


def test_overheads_start_from_a_guess_and_end_at_the_90th_percentile() -> None:
    assert learn_overhead([], []).startup == PRIOR_STARTUP
    assert learn_overhead([float(n) for n in range(1, 11)], [0.5]).total == 9.5


def test_throughputs_kept_up_are_those_learned_anew() -> None:
    rng = random.Random(0)
    kept = Throughputs()
    paces: dict[tuple[int, int], SegmentPace] = {}
    for _ in range(200):
        number, segment = rng.randrange(6), rng.randrange(3)
        slots = 1 if segment == 0 else rng.choice([1, 2, 4])
        pace = SegmentPace(number, slots, rng.uniform(1, 9), rng.uniform(1, 9))
        paces[number, segment] = pace
        kept.take(segment, pace)
        if rng.random() < 0.3:
            kept.learn()
            anew = learn_throughputs(paces.values())
            assert kept.speedup.measured == pytest.approx(dict(anew.speedup.measured))
            assert kept.step_seconds == pytest.approx(anew.step_seconds)


def test_what_is_assumed_of_gangs_on_a_cpu_stays_assumed_beyond_what_is_measured() -> None:
    """A second core is worth a try, and a lower guess than that of GPUs."""
    found = Throughputs(PRIOR_EXPONENT_OF_CPUS)
    assert 1.1 < found.speedup(2) < Throughputs().speedup(2)
    found.take(0, SegmentPace(0, 1, 10, 10))
    found.take(1, SegmentPace(0, 2, 15, 10))
    found.learn()
    assert found.speedup(2) == 1.5
    assert found.speedup(4) == pytest.approx(1.5 * 2**PRIOR_EXPONENT_OF_CPUS)


def test_gangs_over_several_hosts_have_a_speed_of_their_own() -> None:
    paces = [
        SegmentPace(0, 1, 10, 10),
        SegmentPace(0, 2, 18, 10),
        SegmentPace(0, 2, 12, 10, across=True),
        SegmentPace(1, 1, 20, 10),
        SegmentPace(1, 4, 40, 10, across=True),
    ]
    learned = learn_throughputs(paces)
    assert learned.speedup.measured == {2: pytest.approx(1.8)}
    assert learned.speedup.crossing == {2: pytest.approx(1.2), 4: pytest.approx(2.0)}
    assert learned.step_seconds == pytest.approx({0: 1.0, 1: 0.5})


def test_a_gang_that_no_host_has_room_for_is_priced_as_one_that_crosses() -> None:
    assert Speedup({2: 1.9}, pack=2)(2) == 1.9
    assert Speedup({2: 1.9}, pack=1)(2) == pytest.approx(0.6 * 1.9)
    assert Speedup({2: 1.9}, {2: 1.5}, pack=1)(2) == 1.5
    measured = Speedup({2: 2.0, 4: 4.0}, {2: 1.0}, pack=1)
    assert measured(4) == pytest.approx(2.0)  # half, as two fared
    assert 2 not in Speedup({}, {2: 0.9}, pack=1).useful(4)
