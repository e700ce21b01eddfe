"""Shockwave: the programme against brute force, the order, fairness, studies and trials."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cluster.dues import Due, rho, weight
from benchmarks.cluster.jobs import (
    JobView,
    Market,
    Regime,
    Round,
    mean_epoch_seconds,
    seconds_left,
)
from benchmarks.cluster.shares import Shares
from benchmarks.cluster.window import Window, WindowScheduler
from benchmarks.headlines.highs import by_milp
from benchmarks.headlines.job_traces import generate_trace
from benchmarks.headlines.trace_replay import replay
from benchmarks.rivals.schedulers import MaxMinFair
from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies import Policy, make_policy
from optuna_deadline.policies.shockwave.program import Programme, by_gain, order, slope, utility
from optuna_deadline.testing.policies import PolicyTestCase

FAST, SLOW = Regime(64, 10.0, 100.0), Regime(32, 30.0, 200.0)


def job(number: int = 0, gang: int = 1, **more: object) -> JobView:
    values: dict[str, object] = {
        "arrival": 0.0, "epochs": 30, "done": 0.0, "regimes": (SLOW, FAST), "seen": (1, 0),
        "current": 0, **more,
    }  # fmt: skip
    return JobView(number, gang=gang, **values)  # type: ignore[arg-type]


@st.composite
def programmes(draw: st.DrawFn, most_jobs: int = 4, most_rounds: int = 4) -> Programme:
    count = draw(st.integers(1, most_jobs))
    gpus = draw(st.sampled_from([1, 2, 4, 7]))
    progress = np.array([draw(st.floats(0, 0.95)) for _ in range(count)])
    left = np.array([draw(st.floats(0.1, 12)) for _ in range(count)])
    return Programme(
        gangs=np.array([draw(st.sampled_from([g for g in (1.0, 2.0, 4.0) if g <= gpus]))
                        for _ in range(count)]),
        weights=np.array([draw(st.sampled_from([1.0, 1.0, 3.5, 1e6])) for _ in range(count)]),
        progress=progress,
        step=(1 - progress) / left,
        left=left,
        gpus=gpus,
        rounds=draw(st.integers(1, most_rounds)),
        pressure=draw(st.sampled_from([0.0, 0.1, 10.0])),
    )  # fmt: skip


def optimum(programme: Programme) -> float:
    """By trying everything."""
    choices = itertools.product(*(range(most + 1) for most in programme.most))
    room = programme.gpus * programme.rounds
    return max(
        programme.value(np.array(counts)) for counts in choices if programme.gangs @ counts <= room
    )


@given(programmes())
def test_single_rounds_by_gain_miss_the_optimum_by_less_than_a_gang(programme: Programme) -> None:
    counts = by_gain(programme)
    assert (counts >= 0).all() and (counts <= programme.most).all()
    assert programme.gangs @ counts <= programme.gpus * programme.rounds
    best = optimum(programme)
    one_more = programme.gains().max(initial=0.0)
    assert programme.value(counts) >= best - one_more - 1e-6 * abs(best)
    if (programme.gangs == 1).all():
        assert programme.value(counts) == pytest.approx(best, rel=1e-9)


@given(programmes())
@settings(max_examples=15, deadline=None)
def test_highs_finds_the_optimum(programme: Programme) -> None:
    counts = by_milp(programme, seconds=5.0, gap=0.0)
    assert counts is not None
    assert programme.gangs @ counts <= programme.gpus * programme.rounds
    scale = abs(programme.gains()).sum()
    assert programme.value(counts) == pytest.approx(optimum(programme), abs=1e-5 * scale + 1e-9)


@given(programmes(most_jobs=12, most_rounds=8), st.integers(0, 2**12))
def test_the_order_keeps_gangs_whole_and_gives_nobody_more(
    programme: Programme, bits: int
) -> None:
    counts = by_gain(programme)
    ran = np.array([bool(bits >> n & 1) for n in range(len(counts))])
    window = order(programme, counts, ran)
    assert len(window) == programme.rounds
    given_rounds = np.zeros(len(counts), dtype=int)
    for chosen in window:
        assert len(set(chosen)) == len(chosen)
        assert programme.gangs[chosen].sum() <= programme.gpus
        given_rounds[chosen] += 1
    assert (given_rounds <= counts).all()
    if (programme.gangs == 1).all():
        assert (given_rounds == counts).all()


def test_who_sticks_out_beyond_the_common_end_runs_always() -> None:
    """One job of 60 rounds and thirty of 4 on 4 GPUs: they end together only if it never waits."""
    left = np.array([60.0] + [4.0] * 30)
    programme = Programme(
        gangs=np.ones(31), weights=np.ones(31), progress=np.zeros(31), step=1 / left, left=left,
        gpus=4, rounds=20, pressure=10.0,
    )  # fmt: skip
    assert by_gain(programme)[0] == 20
    assert by_gain(replace(programme, pressure=0.0))[0] < 20


def test_utility_is_the_logarithm_at_its_bases() -> None:
    bases = np.array([0.2, 0.4, 0.6, 0.8, 1.0])
    assert utility(bases) == pytest.approx(np.log(bases))
    assert utility(np.array([0.0])) == pytest.approx(np.log(1e-6))
    for low, high in itertools.pairwise(bases):
        assert slope((low + high) / 2) == pytest.approx(np.log(high / low) / 0.2)
    assert slope(1.0) == 0.0


class TestPredictor:
    """The Dirichlet estimate of the time left."""

    def test_before_anything_is_seen_all_regimes_are_as_likely(self) -> None:
        fresh = job(seen=(0, 0))
        assert seconds_left(fresh) == pytest.approx(15 * 30.0 + 15 * 10.0)

    def test_it_is_exact_for_a_single_regime(self) -> None:
        assert seconds_left(job(regimes=(SLOW,), seen=(11,), done=10.5)) == pytest.approx(585.0)

    @given(st.integers(0, 29), st.integers(0, 29))
    def test_it_stays_between_the_fastest_and_the_slowest(self, slow: int, fast: int) -> None:
        done = min(slow + fast, 29)
        view = job(seen=(slow, fast), done=float(done))
        assert view.left * 10.0 - 1e-6 <= seconds_left(view) <= view.left * 30.0 + 1e-6

    def test_what_was_seen_moves_it(self) -> None:
        slow = seconds_left(job(seen=(9, 1), done=10.0))
        fast = seconds_left(job(seen=(1, 9), done=10.0))
        assert slow != pytest.approx(fast)
        assert mean_epoch_seconds(job(seen=(3, 1))) == pytest.approx(25.0)

    def test_nothing_is_left_at_the_end(self) -> None:
        assert seconds_left(job(done=30.0)) == 0.0


class TestDue:
    """What a job is due, and what it weighs if it is late."""

    def test_estimates_count_for_as_long_as_they_stood(self) -> None:
        due = Due(100.0, since=0).revised(200.0, now=30)
        assert due.at(40) == pytest.approx(0.9 * (100 * 30 + 200 * 10) / 40 + 0.1 * 200)

    def test_it_does_not_matter_when_the_cluster_began(self) -> None:
        early = Market(500.0, 9, 120.0, 4, (job(arrival=100.0),))
        late = Market(90_500.0, 9, 120.0, 4, (job(arrival=90_100.0),))
        due = Due(700.0, since=3)
        assert rho(early, early.jobs[0], due) == pytest.approx(rho(late, late.jobs[0], due))

    def test_only_who_is_late_weighs_more_and_none_without_bound(self) -> None:
        market = Market(5000.0, 9, 120.0, 4, (job(),))
        assert weight(market, market.jobs[0], Due(1e9, since=3), 12.0) == 1.0
        assert weight(market, market.jobs[0], Due(4000.0, since=3), 12.0) > 1.0
        assert weight(market, market.jobs[0], Due(1.0, since=3), 12.0) == 1e6


@dataclass(frozen=True)
class Watched:
    """Checks every round that Shockwave answers."""

    shockwave: WindowScheduler

    def schedule(self, market: Market, memory: Window | None) -> Round[Window]:
        answer = self.shockwave.schedule(market, memory)
        assert self.shockwave.schedule(market, memory) == answer  # pure
        running = [market.by_number[number] for number in answer.run]
        free = market.gpus - sum(view.gang for view in running)
        late = {
            view.number: rho(market, view, answer.memory.dues[view.number]) for view in market.jobs
        }
        for view in market.jobs:
            if view in running:
                continue
            assert view.gang > free  # work is conserved
            if late[view.number] > self.shockwave.overdue:
                before_it = [r for r in running if late[r.number] >= late[view.number]]
                assert market.gpus - sum(r.gang for r in before_it) < view.gang
        return answer


@given(
    st.integers(0, 1000), st.integers(2, 25), st.sampled_from([2, 4, 8]),
    st.sampled_from([10.0, 2000.0]), st.sampled_from([1.05, 2.0]),
)  # fmt: skip
@settings(max_examples=8, deadline=None)
def test_nobody_starves_and_no_gpu_idles_that_somebody_could_use(
    seed: int, jobs: int, gpus: int, within: float, overdue: float
) -> None:
    """Only who is at least as overdue, and a rest too small for its gang, keeps one waiting."""
    trace = generate_trace(
        seed, jobs=jobs, gpus=gpus, arrive_within=within, border=900.0, longest=2000.0
    )
    replay(trace, Watched(WindowScheduler(overdue=overdue)))


def test_on_a_crowded_cluster_the_worst_is_treated_better_than_by_equal_shares() -> None:
    trace = generate_trace(7, jobs=40, gpus=12)
    ours, equal = replay(trace, WindowScheduler()), replay(trace, Shares(MaxMinFair()))
    assert ours.worst_rho < equal.worst_rho
    assert ours.makespan < equal.makespan


def test_a_window_is_used_until_somebody_comes_or_goes_or_it_is_old() -> None:
    shockwave = WindowScheduler(window=6, period=3)
    market = Market(0.0, 0, 120.0, 2, tuple(job(n) for n in range(4)))
    first = shockwave.schedule(market, None).memory
    later = replace(market, now=240.0, round=2)
    assert shockwave.schedule(later, first).memory is first
    assert shockwave.schedule(replace(later, round=3), first).memory.made == 3
    fewer = replace(later, jobs=market.jobs[1:])
    assert shockwave.schedule(fewer, first).memory.made == 2


@pytest.mark.parametrize(
    "wrong", [{"period": 0}, {"period": 21}, {"overdue": 1.0}, {"pressure": -1.0}]
)
def test_parameters_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(DeadlineError, match=r"period|overdue"):
        WindowScheduler(**wrong)  # type: ignore[arg-type]


class TestShockwave(PolicyTestCase):
    @pytest.fixture
    def policy(self) -> Policy:
        return make_policy("shockwave", {})


class TestShockwaveOfFewTrials(PolicyTestCase):
    @pytest.fixture
    def policy(self) -> Policy:
        return make_policy("shockwave", {"n_trials": 6})
