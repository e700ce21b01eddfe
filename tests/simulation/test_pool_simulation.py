"""Studies that share a pool in virtual time, with the leader and the planners of production."""

from __future__ import annotations

import math
from functools import partial

import pytest

from optuna_deadline.policies.registry import make_policy
from optuna_deadline.simulation import Cluster, PoolOutcome, PoolSimulation, PoolStudy, Workload

CLUSTER = Cluster(slots=4, startup=2.0, stop=1.0)
SEARCH = partial(make_policy, "fifo", {})


def workload(seconds: float) -> Workload:
    """Trainings of ten steps."""
    return Workload("steps", (tuple(n / 10 for n in range(1, 11)),), (seconds / 10,))


def work(trials: int, arrival: float, deadline: float = math.inf) -> PoolStudy:
    """Trainings of 60 s that have to be done."""
    policy = partial(make_policy, "fifo", {"n_trials": trials})
    return PoolStudy(workload(60.0), policy, arrival, deadline)


def run(divider: str, *studies: PoolStudy) -> PoolOutcome:
    """The outcome, with a look of the leader every five seconds."""
    return PoolSimulation(studies, divider, CLUSTER, interval=5.0).run()


def test_a_short_search_has_more_than_even_shares_give_it() -> None:
    short = PoolStudy(workload(20.0), SEARCH, 0.0, 300.0)
    long = PoolStudy(workload(20.0), SEARCH, 0.0, 1200.0)
    even, purse = run("even", short, long), run("fair", short, long)
    assert even.served[0] == pytest.approx(2 * 300.0, rel=0.1)
    assert purse.served[0] > 1.3 * even.served[0]
    for outcome in (even, purse):
        assert sum(outcome.served) <= 4 * 1200.0
        assert [round(one.deadline) for one in outcome.studies] == [300, 1200]
        assert all(one.overshoot < 5 for one in outcome.studies)


def test_work_is_in_time_beside_a_search_and_done_without_a_deadline() -> None:
    """Even shares end the dated work late: 12 trainings on two of four slots take 378 s."""
    search = PoolStudy(workload(20.0), SEARCH, 0.0, 900.0)
    outcome = run("fair", search, work(12, 10.0, 10.0 + 300.0), work(3, 400.0))
    assert outcome.complete[1:] == (12, 3)
    assert outcome.studies[2].ended < 900.0
    assert run("even", search, work(12, 10.0, 10.0 + 300.0)).complete[1] < 12


def test_a_study_that_ends_leaves_its_slots_to_the_next_leader() -> None:
    outcome = run("fair", work(4, 0.0), work(8, 30.0))
    assert outcome.complete == (4, 8) and outcome.handovers > 0
    assert outcome.studies[1].ended < 320.0


def test_the_same_studies_come_to_the_same_end() -> None:
    studies = work(5, 0.0), work(4, 20.0, 400.0)
    assert run("fair", *studies) == run("fair", *studies)
