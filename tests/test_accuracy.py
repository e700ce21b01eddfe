"""What the accuracy benchmark makes of regrets, and that no policy beats the oracle there."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from benchmarks import backtest, endless, ranking
from benchmarks.accuracy import kept, summary
from benchmarks.accuracy.__main__ import main, measure
from benchmarks.accuracy.peers import PEERS, OptunaPruner
from benchmarks.accuracy.runs import ORACLE, Case, Setting, played, regret
from benchmarks.accuracy.search import SAMPLERS, TableSearch, _fitted, trials_of
from benchmarks.accuracy.summary import Run
from optuna_deadline.errors import DeadlineError
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


def test_the_policy_left_out_of_sight_is_chosen_by_the_other_families_alone() -> None:
    tables = ["few/1", "many/1", "more/1"]
    of = {"steady": (0.2, 0.2, 0.2), "specialist": (0.0, 0.5, 0.5)}
    runs = _runs({(p, t): r for p, mine in of.items() for t, r in zip(tables, mine, strict=True)})
    few = summary.left_out(runs)["few"]
    assert few == {"chosen": "steady", "regret": 0.2, "best": "specialist", "best_regret": 0.0}
    places = summary.ranks(runs)
    assert places["few"] == {"steady": 2, "specialist": 1}
    assert places["many"] == {"steady": 1, "specialist": 2}


def test_a_cell_is_lost_to_the_policy_with_the_lowest_regret() -> None:
    of = {"mine": (0.2, 0.4, 0.1), "better": (0.1, 0.1, 0.2), "worse": (0.3, 0.3, 0.2)}
    tables = ["few/1", "few/2", "many/1"]
    runs = _runs({(p, t): r for p, each in of.items() for t, r in zip(tables, each, strict=True)})
    (lost,) = summary.losses(runs, "mine")
    assert (lost["family"], lost["trainings"], lost["best"]) == ("few", 4, "better")
    assert (lost["mean"], lost["error"]) == (pytest.approx(-0.2), pytest.approx(0.1))
    assert summary.losses(runs, "better")[0]["family"] == "many"
    assert [lost["family"] for lost in summary.losses(runs, "worse")] == ["few", "many"]


def test_a_cell_with_two_best_policies_is_lost_by_neither() -> None:
    of = {"one": (0.25, 0.5), "other": (0.5, 0.25)}
    runs = _runs({(p, f"few/{i}"): r for p, both in of.items() for i, r in enumerate(both)})
    assert summary.losses(runs, "one") == summary.losses(runs, "other") == []


@given(st.floats(0.1, 2.0))
def test_a_policy_with_a_part_of_all_regrets_has_that_ratio_and_no_error(part: float) -> None:
    tables = ["many/1", "many/2", "many/3", "few/1", "few/2"]
    theirs = {("reference", table): 0.1 + 0.1 * n for n, table in enumerate(tables)}
    mine = {("other", table): part * regret for (_, table), regret in theirs.items()}
    found = summary.ratios(_runs({**theirs, **mine}), "reference")["other"]
    assert found["ratio"] == pytest.approx(part)
    assert found["error"] == pytest.approx(0.0, abs=1e-9)


def test_the_error_of_a_ratio_is_the_jackknifes() -> None:
    theirs = {("reference", f"one/{n}"): 0.5 for n in range(4)}
    mine = {("other", f"one/{n}"): regret for n, regret in enumerate((0.1, 0.2, 0.3, 0.4))}
    found = summary.ratios(_runs({**theirs, **mine}), "reference")["other"]
    # Against a reference that never varies it is the standard error of the mean.
    assert found["error"] == pytest.approx(statistics.stdev((0.2, 0.4, 0.6, 0.8)) / 2)


def test_regret_is_0_for_the_best_and_1_for_the_median_and_below() -> None:
    workload = Workload("three", ((0.1,), (0.4,), (0.9,)), (1.0, 1.0, 1.0))
    assert [regret(workload, value) for value in (0.9, 0.4, 0.1, None)] == [0.0, 1.0, 1.0, 1.0]
    assert regret(workload, 0.65) == pytest.approx(0.5)


def test_the_oracle_is_never_beaten() -> None:
    policies = [ORACLE, "random", "hypersched"]
    settings = [Setting(slots=4, trainings=4, overhead=0.5)]
    recorded = {"recorded": ["recorded/digits"]}
    runs = list(measure(recorded, settings, policies, seeds=range(2), data=None))
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
    deadline = 4 * workload.full_seconds
    simulation = Simulation(policy, workload, Cluster(slots=4), deadline=deadline, search=search)
    simulation.run()
    chosen = list(simulation.world.configurations.values())
    assert len(set(chosen)) == len(chosen) >= 8
    assert set(chosen) <= set(range(len(workload.curves)))


def test_a_sampler_goes_on_after_trainings_that_diverge_at_their_last_step() -> None:
    whole = own()[0]
    curves = tuple((*curve[:8], math.nan) for curve in whole.curves[:40])
    workload = Workload("diverging", curves, whole.step_seconds[:40], whole.hyperparameters[:40])
    search = TableSearch(workload, "tpe", seed=0)
    policy = make_policy("fifo", {"max_resource": workload.steps})
    deadline = 4 * workload.full_seconds + 60.0
    simulation = Simulation(policy, workload, Cluster(slots=4), deadline=deadline, search=search)
    simulation.run()
    parameters = [{"lr": 0.1} for _ in range(40)]
    space = {"lr": FloatDistribution(0.0, 1.0)}
    ended = [trial.state for trial in trials_of(simulation.world, parameters, space)]
    assert ended.count(TrialState.FAIL) >= 4 and TrialState.COMPLETE not in ended


def test_an_earlier_study_of_another_table_says_what_is_trained_first() -> None:
    """Twice the same table: what won the earlier study is what is trained first in the later."""
    world = played(Case("median", "recorded/digits", 3, SETTING, None))
    best = max(world.table.reports(), key=lambda row: row.value)
    won = world.workload.hyperparameters[world.configurations[best.number]]
    workload = own()[0]
    search = TableSearch(workload, "earlier", 0, [world])
    policy = make_policy("median", {"max_resource": workload.steps})
    deadline = workload.full_seconds
    simulation = Simulation(policy, workload, Cluster(slots=1), deadline=deadline, search=search)
    simulation.run()
    assert workload.hyperparameters[simulation.world.configurations[0]] == won


def test_a_number_beyond_the_ends_comes_to_the_end_and_a_name_that_is_none_is_left_out() -> None:
    whole = own()[0]
    narrow = Workload("narrow", whole.curves[:2], (1.0, 1.0), ({"x": 1.0, "k": "a"}, {"x": 2.0}))
    search = TableSearch(narrow, "earlier", 0)
    assert _fitted(search._space, {"x": 9, "k": "b"}) == {"x": 2.0}
    assert _fitted(search._space, {"k": "a", "x": "?"}) == {"k": "a"}


def test_a_table_that_is_alone_has_no_earlier_study() -> None:
    with pytest.raises(DeadlineError, match="recorded/digits is alone of its kind"):
        Case("median+earlier", "recorded/digits", 0, SETTING, None).run()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["random", "optuna_median"])
def test_a_study_opens_no_more_trials_than_there_are_configurations(policy: str) -> None:
    setting = Setting(4, trainings=200, overhead=0.5)
    simulation = Case(policy, "recorded/digits", 0, setting, None).simulation()
    simulation.run()
    world = simulation.world
    assert len(world.table.trials()) == len(world.workload.curves)


@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_sees_every_report_and_prunes_as_optuna_does(peer: str) -> None:
    workload = own()[0]
    policy = OptunaPruner(PEERS[peer](workload.steps), seed=0, n_trials=len(workload.curves))
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


TABLE = "recorded/digits"
STUDIES = ["--slots", "4", "--overhead", "0.5", "--family", TABLE]


def _file(path: Path, policy: str, **other: Any) -> Path:
    """As an earlier run would have left it, with a regret that no run would have."""
    rows = [
        {"policy": policy, "family": TABLE, "table": TABLE, "seed": 0, "slots": 4,
         "trainings": trainings, "overhead": 0.5, "regret": 0.123}
        for trainings in other.pop("trainings", (4, 8, 16, 32))
    ]  # fmt: skip
    path.write_text(json.dumps({"rows": rows, "tables": kept.digests([TABLE], None), **other}))
    return path


def test_what_an_earlier_run_has_is_not_run_again(tmp_path: Path) -> None:
    files = [_file(tmp_path / name, name) for name in ("random", "optuna_median")]
    part = _file(tmp_path / "median", "median", trainings=(4,))
    out = tmp_path / "all.json"
    takes = [word for file in (*files, part) for word in ("--take", str(file))]
    main([*STUDIES, *takes, "--reference", "random", "--json", str(out)])
    result = json.loads(out.read_text())
    assert result["mean_regret"] == pytest.approx({"random": 0.123, "optuna_median": 0.123})
    main([*STUDIES, "--take", str(out), "--take", str(part), "--policy", "median",
          "--reference", "random", "--json", str(out)])  # fmt: skip
    result = json.loads(out.read_text())
    assert result["mean_regret"].keys() == {"random", "optuna_median", "median"}
    median = {r["trainings"]: r["regret"] for r in result["rows"] if r["policy"] == "median"}
    assert median[4] == 0.123 and 0.123 not in (median[8], median[16], median[32])


def test_rows_of_other_curves_and_rows_that_disagree_are_refused(tmp_path: Path) -> None:
    mine = _file(tmp_path / "mine", "random")
    others = _file(tmp_path / "others", "random", tables={TABLE: "other curves"})
    with pytest.raises(DeadlineError, match="of other curves"):
        kept.take([others], kept.digests([TABLE], None))
    changed = tmp_path / "changed"
    changed.write_text(mine.read_text().replace("0.123", "0.124"))
    with pytest.raises(DeadlineError, match="older code"):
        kept.take([mine, changed], kept.digests([TABLE], None))


def test_a_search_ends_with_its_configurations_or_trains_old_ones_again() -> None:
    case = endless.Case("endless", "toy", 1, 4, 12, True, None)
    found = {}
    for ends, rule in product((True, False), endless.RULES):
        this = replace(case, rule=rule, ends=ends)
        found[this] = this.run()
        assert found[this][1] == (not ends and rule != "number known")
    for row, ran_out in zip(list(endless.rows(found))[:2], (False, True), strict=True):
        assert (row["kind"], row["ran out"], row["studies"]) == ("toy", ran_out, 1)
        assert row["endless"]["difference"] == 0


def test_the_first_tenth_is_placed_by_the_ends_of_its_trials() -> None:
    curves = tuple((0.0, number / 10) for number in range(11))
    workload = Workload("rising", curves, (1.0,) * 11, ({},) * 11)
    best_first = {number: float(number) for number in range(11)}
    assert ranking._place_of_first(best_first, workload) == pytest.approx(0.05)  # two of eleven
    assert ranking._place_of_first({n: -v for n, v in best_first.items()}, workload) == (
        pytest.approx(0.95)
    )
    found = ranking.RankedStudy(backtest.Case("toy", 0, 2, 8, None)).run()
    assert found is not None and set(found) == set(ranking.ORDERS)
