"""What the accuracy benchmark makes of regrets, and that no policy beats the oracle there."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.accuracy import summary
from benchmarks.accuracy.__main__ import measure
from benchmarks.accuracy.peers import PEERS, OptunaPruner
from benchmarks.accuracy.runs import ORACLE, Case, Setting, regret
from benchmarks.accuracy.search import SAMPLERS, TableSearch
from benchmarks.accuracy.summary import Run
from optuna_deadline.policies import make_policy
from optuna_deadline.simulation import Cluster, Simulation, Workload
from optuna_deadline.simulation.tables import own

SETTING = Setting(slots=2, trainings=4, overhead=0.5)
TABLES = {"many": ["many/1", "many/2", "many/3"], "few": ["few/1"]}


def _runs(regrets: dict[tuple[str, str], float]) -> list[Run]:
    return [
        Run(Case(policy, table, 0, SETTING, None), table.partition("/")[0], value)
        for (policy, table), value in regrets.items()
    ]


KEYS = list(product(("hypersched", "other"), [t for some in TABLES.values() for t in some]))
regrets = st.fixed_dictionaries({key: st.floats(0, 1) for key in KEYS})


@given(regrets)
def test_no_family_counts_double(drawn: dict[tuple[str, str], float]) -> None:
    mean = summary.mean_regret(_runs(drawn))["other"]
    many = math.fsum(drawn["other", table] for table in TABLES["many"]) / 3
    assert mean == pytest.approx((many + drawn["other", "few/1"]) / 2)


@given(regrets)
def test_of_two_policies_one_wins_what_the_other_loses(
    drawn: dict[tuple[str, str], float],
) -> None:
    won = summary.wins(_runs(drawn))
    assert won["hypersched"]["other"] + won["other"]["hypersched"] == pytest.approx(1.0)
    assert won["other"]["other"] == pytest.approx(0.5)


@given(regrets)
def test_the_reference_differs_from_itself_by_nothing(
    drawn: dict[tuple[str, str], float],
) -> None:
    found = summary.differences(_runs(drawn), "hypersched")
    assert found["hypersched"] == {"mean": 0.0, "error": 0.0}


def test_regret_is_0_for_the_best_and_1_for_the_median_and_below() -> None:
    workload = Workload("three", ((0.1,), (0.4,), (0.9,)), (1.0, 1.0, 1.0))
    assert [regret(workload, value) for value in (0.9, 0.4, 0.1, None)] == [0.0, 1.0, 1.0, 1.0]
    assert regret(workload, 0.65) == pytest.approx(0.5)


def test_the_oracle_is_never_beaten() -> None:
    policies = [ORACLE, "random", "hypersched"]
    settings = [Setting(slots=4, trainings=4, overhead=0.5)]
    runs = measure(
        {"recorded": ["recorded/digits"]}, settings, policies, seeds=range(2), data=None
    )
    by_policy = {
        policy: [r.regret for r in runs if r.case.policy == policy] for policy in policies
    }
    for policy in policies:
        for bound, reached in zip(by_policy[ORACLE], by_policy[policy], strict=True):
            assert bound <= reached + 1e-9


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_sampler_trains_no_configuration_twice_and_only_those_of_the_table(sampler: str) -> None:
    workload = own()[0]
    search = TableSearch(workload, sampler, seed=0)
    policy = make_policy("median", {"max_resource": workload.steps})
    deadline = 2 * workload.full_seconds
    simulation = Simulation(policy, workload, Cluster(slots=4), deadline=deadline, search=search)
    simulation.run()
    chosen = list(simulation.world.configurations.values())
    assert len(set(chosen)) == len(chosen) >= 8
    assert set(chosen) <= set(range(len(workload.curves)))


@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_sees_every_report_and_prunes_as_optuna_does(peer: str) -> None:
    workload = own()[0]
    policy = OptunaPruner(PEERS[peer](workload.steps), seed=0)
    deadline = 8 * workload.full_seconds
    simulation = Simulation(policy, workload, Cluster(slots=4), deadline=deadline)
    simulation.run()
    theirs = policy._study.trials
    assert {"COMPLETE", "PRUNED"} <= {trial.state.name for trial in theirs}
    known: dict[int, dict[int, float]] = {}
    for row in simulation.world.table.reports():
        known.setdefault(row.number, {})[row.step] = row.value
    for trial in theirs:
        if trial.state.name == "COMPLETE":
            assert trial.intermediate_values == known[trial.number]
        for step, value in trial.intermediate_values.items():
            assert known[trial.number][step] == value
