"""The closed forms of the baselines' shares, against their linear programmes by HiGHS."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from benchmarks.cluster.jobs import JobView, Market, Regime
from benchmarks.cluster.shares import Allocator
from benchmarks.rivals.schedulers import (
    AlloX,
    FinishTimeFair,
    GandivaFair,
    MaxMinFair,
    MaxThroughput,
    MinTotalDuration,
)


@st.composite
def jobs(draw: st.DrawFn, number: int, gpus: int) -> JobView:
    epochs = draw(st.integers(1, 50))
    return JobView(
        number=number,
        arrival=draw(st.floats(0, 900)),
        gang=draw(st.sampled_from([g for g in (1, 2, 4) if g <= gpus])),
        epochs=epochs,
        done=epochs * draw(st.floats(0, 0.9)),
        regimes=(Regime(32, draw(st.floats(1, 100)), draw(st.integers(10, 1000))),),
        seen=(1,),
        current=0,
        received=draw(st.floats(0, 500)),
    )


@st.composite
def markets(draw: st.DrawFn) -> Market:
    gpus = draw(st.integers(1, 8))
    count = draw(st.integers(1, 8))
    views = tuple(draw(jobs(number, gpus)) for number in range(count))
    return Market(1000.0, 5, 120.0, gpus, views)


ALLOCATORS: list[Allocator[object]] = [
    MaxMinFair(), GandivaFair(), MinTotalDuration(), MaxThroughput(), FinishTimeFair(), AlloX(),
]  # fmt: skip


def best(objective: np.ndarray, rows: np.ndarray, bounds: np.ndarray) -> float:
    """The greatest value of a linear programme over shares between 0 and 1, and one free scale."""
    sides = [(0, 1)] * (len(objective) - 1) + [(0, None)]
    return -float(linprog(-objective, A_ub=rows, b_ub=bounds, bounds=sides).fun)


@pytest.mark.parametrize("allocator", ALLOCATORS, ids=lambda a: type(a).__name__)
@given(market=markets())
@settings(max_examples=20, deadline=None)
def test_shares_are_parts_of_the_time(allocator: Allocator[object], market: Market) -> None:
    shares = allocator.allocate(market, None).shares
    assert shares.keys() == market.by_number.keys()
    assert all(-1e-9 <= share <= 1 + 1e-9 for share in shares.values())
    if not isinstance(allocator, (GandivaFair, AlloX)):  # these two count jobs, not GPUs
        used = sum(shares[job.number] * job.gang for job in market.jobs)
        assert used <= market.gpus * (1 + 1e-6)


@given(market=markets())
@settings(max_examples=20, deadline=None)
def test_max_min_fair_solves_its_programme(market: Market) -> None:
    gangs = np.array([job.gang for job in market.jobs], float)
    count = len(gangs)
    rows = np.vstack([np.append(gangs, 0), np.hstack([-np.diag(gangs), np.ones((count, 1))])])
    optimum = best(np.append(np.zeros(count), 1), rows, np.append(market.gpus, np.zeros(count)))
    shares = MaxMinFair().allocate(market, None).shares
    assert min(shares[j.number] * j.gang for j in market.jobs) == pytest.approx(optimum, rel=1e-6)


@given(market=markets())
@settings(max_examples=20, deadline=None)
def test_max_throughput_solves_its_programme(market: Market) -> None:
    gangs = np.array([job.gang for job in market.jobs], float)
    speed = np.array([job.regime.steps / job.regime.epoch_seconds for job in market.jobs])
    optimum = best(np.append(speed, 0), np.append(gangs, 0)[None], np.array([market.gpus]))
    shares = MaxThroughput().allocate(market, None).shares
    reached = sum(v * shares[j.number] for v, j in zip(speed, market.jobs, strict=True))
    assert reached == pytest.approx(optimum, rel=1e-6)


@given(market=markets())
@settings(max_examples=20, deadline=None)
def test_min_total_duration_solves_its_programme(market: Market) -> None:
    """``max 1 / T`` such that everybody's share is at least what it needs to end by T."""
    gangs = np.array([job.gang for job in market.jobs], float)
    left = np.array([job.seconds_left for job in market.jobs])
    count = len(left)
    rows = np.vstack([np.append(gangs, 0), np.hstack([-np.eye(count), left[:, None]])])
    optimum = best(np.append(np.zeros(count), 1), rows, np.append(market.gpus, np.zeros(count)))
    shares = MinTotalDuration().allocate(market, None).shares
    ends = [job.seconds_left / shares[job.number] for job in market.jobs]
    assert 1 / max(ends) == pytest.approx(optimum, rel=1e-6)


@given(market=markets())
@settings(max_examples=20, deadline=None)
def test_finish_time_fair_cannot_be_bettered(market: Market) -> None:
    """With a worst rho that is a little less, the shares needed would not fit."""
    allocation = FinishTimeFair().allocate(market, None)
    worst = 0.0
    for job in market.jobs:
        alone = allocation.note[job.number]
        ends = market.now - job.arrival + job.seconds_left / allocation.shares[job.number]
        worst = max(worst, ends / (alone.left * alone.step_seconds))
    needed = []
    for job in market.jobs:
        alone = allocation.note[job.number]
        spare = 0.99 * worst * alone.left * alone.step_seconds - (market.now - job.arrival)
        needed.append(job.seconds_left / spare if spare > 0 else np.inf)
    used = sum(share * job.gang for share, job in zip(needed, market.jobs, strict=True))
    assert max(needed) > 1 or used > market.gpus
