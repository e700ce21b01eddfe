"""What holds of every replay of jobs, under every baseline."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cluster.jobs import Market, Round, Scheduler
from benchmarks.cluster.shares import Shares
from benchmarks.headlines.job_traces import Job, Stretch, Trace, generate_trace, read_trace
from benchmarks.headlines.trace_replay import replay
from benchmarks.rivals.schedulers import (
    AlloX,
    FinishTimeFair,
    GandivaFair,
    MaxMinFair,
    MaxThroughput,
    MinTotalDuration,
)
from optuna_deadline.errors import DeadlineError

BASELINES = [
    Shares(MaxMinFair()),
    Shares(GandivaFair()),
    Shares(MinTotalDuration()),
    Shares(MaxThroughput()),
    Shares(FinishTimeFair()),
    Shares(AlloX()),
]
traces = st.builds(
    lambda seed, jobs, gpus, within: generate_trace(
        seed, jobs=jobs, gpus=gpus, arrive_within=within, border=1000.0, longest=2500.0
    ),
    st.integers(0, 1000),
    st.integers(1, 14),
    st.sampled_from([1, 2, 5, 8]),
    st.sampled_from([1.0, 1000.0, 40_000.0]),
)


@dataclass(frozen=True)
class Oldest:
    """Runs one job at a time, by its number."""

    def schedule(self, market: Market, memory: None) -> Round[None]:
        return Round((min(job.number for job in market.jobs),), None)


@dataclass(frozen=True)
class Named:
    """Runs the given jobs."""

    run: tuple[int, ...]

    def schedule(self, market: Market, memory: None) -> Round[None]:
        return Round(self.run, None)


@pytest.mark.parametrize("scheduler", BASELINES, ids=lambda s: type(s.allocator).__name__)
@given(trace=traces)
@settings(max_examples=10, deadline=None)
def test_every_replay_keeps_its_books(scheduler: Scheduler[object], trace: Trace) -> None:
    result = replay(trace, scheduler)
    gangs = {job.number: job.gang for job in trace.jobs}
    arrivals = {job.number: job.arrival for job in trace.jobs}
    assert result.finished.keys() == gangs.keys()
    for log in result.rounds:
        assert log.gpus == sum(gangs[number] for number in log.run) <= trace.gpus
        assert 0 < log.ended - log.began <= trace.round_seconds + 1e-6
        assert all(arrivals[number] <= log.began for number in log.run)
    assert all(a.ended <= b.began for a, b in pairwise(result.rounds))
    work = sum(job.exclusive * job.gang for job in trace.jobs)
    assert result.trained == pytest.approx(work)
    assert all(result.jct[job.number] >= job.exclusive - 1e-3 for job in trace.jobs)
    assert 0 < result.utilisation <= 1
    assert replay(trace, scheduler) == result


def test_a_job_alone_is_never_held_up() -> None:
    job = Job(7, 50.0, 2, (Stretch(32, 10, 40.0), Stretch(64, 4, 25.0)))
    result = replay(Trace(4, (job,)), Shares(MaxMinFair()))
    assert result.jct == {7: pytest.approx(500.0)}
    assert result.rho[7] == pytest.approx(1.0)
    assert [round(log.ended - log.began) for log in result.rounds] == [120, 120, 120, 120, 20]


def test_a_job_that_comes_back_pays_for_it() -> None:
    jobs = (Job(0, 0.0, 1, (Stretch(1, 1, 240.0),)), Job(1, 0.0, 1, (Stretch(1, 1, 200.0),)))
    result = replay(Trace(1, jobs), Oldest())
    assert result.finished == {0: pytest.approx(240.0), 1: pytest.approx(240.0 + 200.0 + 20.0)}


def test_gpus_of_a_job_that_ends_idle_until_the_round_is_over() -> None:
    jobs = tuple(Job(n, 0.0, 1, (Stretch(1, 1, seconds),)) for n, seconds in enumerate((30.0, 90)))
    waiting = Job(2, 10.0, 1, (Stretch(1, 1, 50.0),))
    result = replay(Trace(2, (*jobs, waiting)), Shares(MaxMinFair()))
    assert result.rounds[1].began == pytest.approx(90.0)


def test_the_view_tells_the_past_and_not_the_future() -> None:
    seen = []

    class Watching(Oldest):
        def schedule(self, market: Market, memory: None) -> Round[None]:
            seen.append(market.jobs[0])
            return super().schedule(market, memory)

    job = Job(0, 0.0, 1, (Stretch(32, 3, 50.0), Stretch(64, 4, 25.0), Stretch(32, 1, 50.0)))
    replay(Trace(1, (job,)), Watching())
    assert [round(view.done, 3) for view in seen] == [0.0, 2.4, 6.6]
    assert [view.seen for view in seen] == [(1, 0), (3, 0), (3, 4)]
    assert [view.current for view in seen] == [0, 0, 1]
    assert {view.regimes for view in seen} == {seen[0].regimes}
    assert [regime.batch_size for regime in seen[0].regimes] == [32, 64]


@pytest.mark.parametrize("run", [(), (0, 0), (9,), (0, 1)])
def test_a_schedule_that_cannot_be_is_refused(run: tuple[int, ...]) -> None:
    jobs = tuple(Job(number, 0.0, 2, (Stretch(1, 1, 90.0),)) for number in range(2))
    with pytest.raises(DeadlineError):
        replay(Trace(3, jobs), Named(run))


def test_generated_traces_are_of_the_published_kind() -> None:
    trace = generate_trace(1, jobs=400, gpus=64)
    assert trace == generate_trace(1, jobs=400, gpus=64) != generate_trace(2, jobs=400, gpus=64)
    lengths = sorted(job.exclusive for job in trace.jobs)
    assert 2000 < lengths[200] < 4500
    assert trace.jobs[0].arrival == 0 and 3500 < trace.jobs[-1].arrival < 6500
    assert {job.gang for job in trace.jobs} == {1, 2, 4, 8}
    assert sum(len(job.stretches) > 1 for job in trace.jobs) > 100


def test_a_trace_is_read_and_bad_ones_are_refused_in_words(tmp_path: Path) -> None:
    regime = {"batch_size": 32, "epochs": 5, "seconds_per_epoch": 10.5}
    job = {
        "job": 3,
        "arrival_s": 4.0,
        "gpus": 2,
        "model": "LM",
        "mode": "gns",
        "regimes": [regime],
    }
    good = {"cluster_gpus": 4, "round_s": 120, "resume_overhead_s": 20, "jobs": [job]}
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(good))
    assert read_trace(file) == Trace(4, (Job(3, 4.0, 2, (Stretch(32, 5, 10.5),), "LM", "gns"),))
    bad = [
        ({**good, "jobs": []}, "list of jobs"),
        ({**good, "round_s": 0}, "'round_s'"),
        ({**good, "jobs": [{**job, "gpus": 9}]}, "never run"),
        ({**good, "jobs": [job, job]}, "two jobs of one number"),
        ({**good, "jobs": [{**job, "regimes": []}]}, "job 0 must have a list 'regimes'"),
        ({**good, "jobs": [{**job, "regimes": [{**regime, "epochs": "x"}]}]}, "'epochs'"),
        ([], "'cluster_gpus'"),
    ]
    for content, words in bad:
        file.write_text(json.dumps(content))
        with pytest.raises(DeadlineError, match=words):
            read_trace(file)
    file.write_text("{")
    with pytest.raises(DeadlineError, match="JSON"):
        read_trace(file)


def test_contention_is_in_rho() -> None:
    trace = generate_trace(3, jobs=8, gpus=2)
    result = replay(trace, Shares(GandivaFair()))
    job = trace.jobs[5]
    assert result.rho[job.number] == pytest.approx(result.jct[job.number] / (job.exclusive * 4))
    assert result.unfair(0.0) == 1.0 and result.unfair(result.worst_rho) == 0.0
    wide = replay(replace(trace, gpus=64), Shares(GandivaFair()))
    assert min(wide.rho.values()) >= 1.0 - 1e-6
