"""Users' own policies: by name, by place, or as an object, with the parameters they take."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import optuna
import pytest
from typer.testing import CliRunner

from optuna_deadline import DeadlinePruner
from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.cli import app
from optuna_deadline.elastic import ElasticWorker, agree
from optuna_deadline.errors import DeadlineConflict, DeadlineError
from optuna_deadline.options import WorkerOptions
from optuna_deadline.policies import (
    AdaptiveHalving,
    HyperSched,
    Pause,
    Plan,
    Run,
    Snapshot,
    registry,
)
from optuna_deadline.policies.registry import FunctionPolicy
from optuna_deadline.simulation import Cluster, generate, simulate
from optuna_deadline.study import agreement, policy_choice
from optuna_deadline.study.terms import Given
from optuna_deadline.values.budgets import make_budget

RESOURCES = {"min_resource": 1, "max_resource": 20, "reduction_factor": 3}
SNAPSHOT = Snapshot(now=0.0, started=0.0, deadline=9.0, capacity=2, largest_gang=2)

FILE = """
from dataclasses import dataclass
from optuna_deadline.policies import Plan

@dataclass(frozen=True)
class Patient:
    patience: int = 3

    def plan(self, snapshot):
        return Plan(start=self.patience)

def greedy(snapshot, *, reduction_factor, most=4):
    return Plan(start=min(most, reduction_factor))

ready = Patient(7)
number = 5
"""


def newest_first(snapshot: Snapshot) -> Plan:
    """A policy in a few lines: one slot each, the newest trials first."""
    alive = [trial for trial in snapshot.trials if trial.alive]
    chosen = sorted(alive, key=lambda trial: -trial.number)[: snapshot.capacity]
    orders = {t.number: Run(1, "new") if t in chosen else Pause("old") for t in alive}
    return Plan(orders, start=snapshot.capacity - len(chosen))


@dataclass(frozen=True)
class Starter:
    count: int = 1

    def plan(self, snapshot: Snapshot) -> Plan:
        return Plan(start=self.count)


def starter(*, count: int = 2) -> Starter:
    return Starter(count)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "mine_to_choose.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return "mine_to_choose.py"


def started(policy: Any, **parameters: Any) -> int:
    return policy_choice.make(policy, {**RESOURCES, **parameters}).plan(SNAPSHOT).start


def test_every_way_to_give_a_policy_decides(place: str) -> None:
    assert started(Starter(5)) == 5
    assert started(Starter) == 1 and started(Starter, count=4) == 4
    assert started(starter) == 2 and started(starter, count=3) == 3
    assert started(lambda snapshot: Plan(start=snapshot.capacity)) == 2
    assert started(f"{place}:Patient") == 3 and started(f"{place}:Patient", patience=9) == 9
    assert started(f"{place}:ready") == 7
    assert started(f"{place}:greedy") == 3 and started(f"{place}:greedy", most=2) == 2
    assert started("mine_to_choose:greedy") == 3
    assert policy_choice.make(None, {**RESOURCES, "n_trials": 7}) == AdaptiveHalving(
        1, 20, 3, n_trials=7
    )
    assert policy_choice.make("hypersched", {**RESOURCES, "recharge": 2.0}) == HyperSched(
        1, 20, 3, 2.0
    )


def test_an_entry_point_may_name_any_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name = "theirs"

        def load(self) -> Any:
            return newest_first

    monkeypatch.setattr(registry, "entry_points", lambda group: [Point()])
    assert "theirs" in registry.known_policies()
    assert started("theirs") == 2


@pytest.mark.parametrize(
    ("policy", "parameters", "says"),
    [
        ("hypersched", {"patience": 3}, "'hypersched' takes no 'patience'; it takes min_resource"),
        ("nobody", {}, "no policy 'nobody'; choose one of 'adaptive_halving'"),
        ("{place}:Patient", {"most": 3}, "takes no 'most'; it takes patience"),
        (
            "{place}:greedy",
            {"patience": 3},
            "takes no 'patience'; it takes reduction_factor, most",
        ),
        ("{place}:ready", {"patience": 3}, "takes no 'patience'; it takes none of its own"),
        ("{place}:nothing", {}, "no policy 'nothing'"),
        ("{place}:number", {}, "no policy 'number'"),
        ("nowhere.py:Mine", {}, "no file nowhere.py"),
        ("no_such_module:Mine", {}, "no module 'no_such_module'"),
        (":Mine", {}, "is not a policy"),
        (5, {}, "int and not a policy"),
        (dict, {}, "type and not a policy"),
        (lambda: 5, {}, "has no plan"),
        ("fifo", {"start": {1, 2}}, "must be a number"),
        ("object:Mine", {}, r"policy='FILE\.py:Mine'"),
    ],
)
def test_mistakes_get_one_sentence(
    policy: Any, parameters: dict[str, Any], says: str, place: str
) -> None:
    given = policy.format(place=place) if isinstance(policy, str) else policy
    with pytest.raises(DeadlineError, match=says):
        policy_choice.make(given, {**RESOURCES, **parameters})


def test_what_a_function_returns_is_checked() -> None:
    with pytest.raises(TypeError, match="returned NoneType; return a Plan"):
        FunctionPolicy(lambda snapshot: None).plan(SNAPSHOT)  # type: ignore[arg-type, return-value]


def test_parameters_are_in_the_terms_and_the_first_hold() -> None:
    study = optuna.create_study(study_name="s")
    first = {**RESOURCES, "recharge": 2.0}
    fixed = agree(study, "1h", Given("hypersched", first))
    assert fixed.parameters == first
    assert agree(study, "1h", Given(None, {"recharge": 2})).parameters == first
    with pytest.raises(DeadlineConflict, match=r"recharge 2\.0 .* recharge 3\.0"):
        agree(study, "1h", Given("hypersched", {**RESOURCES, "recharge": 3.0}))
    with pytest.raises(DeadlineError, match="takes no 'speed'"):
        agree(optuna.create_study(), "1h", Given(None, {**RESOURCES, "speed": 3.0}))


@pytest.mark.parametrize("fixed", [False, True], ids=["first", "second"])
def test_a_worker_asks_for_what_the_pruner_leaves_open(fixed: bool) -> None:
    study = optuna.create_study(pruner=DeadlinePruner("1h", max_resource=9))
    if fixed:
        assert study.pruner._terms(study).policy is None  # type: ignore[attr-defined]
    with pytest.raises(DeadlineConflict, match=r"max_resource 9 .* max_resource 7"):
        agree(study, None, Given("seer", {"max_resource": 7}))
    asked = {"min_resource": None, "n_trials": 2}
    joined = agree(study, None, Given("fifo", asked, make_budget("9usd", 1.0), max_slots=1))
    assert (joined.policy, joined.max_slots, joined.budget) == (
        "fifo",
        1,
        make_budget("9usd", 1.0),
    )
    assert joined.parameters["n_trials"] == 2 and joined.parameters["max_resource"] == 9
    with pytest.raises(DeadlineConflict, match=r"policy 'fifo' .* policy 'seer'"):
        agree(study, None, Given("seer"))
    with pytest.raises(DeadlineConflict, match=r"max_resource 9 .* max_resource 7"):
        agree(study, None, Given(None, {"max_resource": 7}))


@pytest.mark.parametrize("begun", [False, True], ids=["by run", "by a pruner"])
def test_an_object_serves_its_own_process_alone(begun: bool, sqlite_url: str) -> None:
    mine = Starter(6)
    pruner = DeadlinePruner("1h") if begun else None
    study = optuna.create_study(study_name="s", storage=sqlite_url, pruner=pruner)
    agreed = agree(study, None if begun else "1h", Given(mine, RESOURCES))
    worker = ElasticWorker(study, newest_first, agreed, WorkerOptions(cpus=1), policy=mine)  # type: ignore[arg-type]
    assert worker._policy is mine
    elsewhere = optuna.load_study(study_name="s", storage=sqlite_url)
    found = agreement.read(open_table(elsewhere), elsewhere)
    assert found is not None
    with pytest.raises(DeadlineError, match="an object in the process that created it"):
        ElasticWorker(elsewhere, newest_first, found, WorkerOptions(cpus=1))  # type: ignore[arg-type]


def test_a_function_decides_a_whole_study() -> None:
    tuned = generate("power-law", 0, configurations=16, steps=9)
    policy = policy_choice.make(newest_first, RESOURCES)
    outcome = simulate(policy, tuned, Cluster(slots=2), deadline=2 * tuned.full_seconds)
    assert outcome.trials > 2 and outcome.overshoot <= 0 and outcome.value is not None


def test_the_command_line_takes_a_place_and_settings(place: str, sqlite_url: str) -> None:
    create = ["create", "s", "--storage", sqlite_url, "--deadline", "1h"]
    asked = ["--policy", f"{place}:greedy:most=2"]
    run = CliRunner().invoke(app, [*create, *asked])
    assert run.exit_code == 0, run.output
    study = optuna.load_study(study_name="s", storage=sqlite_url)
    found = agreement.read(open_table(study), study)
    assert found is not None and found.parameters["most"] == 2
    assert policy_choice.make(found.policy, found.parameters).plan(SNAPSHOT).start == 2
    for wrong, says in (("most=2,x", "NAME=VALUE"), ("least=2", "takes no 'least'")):
        run = CliRunner().invoke(app, [*create, "--policy", f"{place}:greedy:{wrong}"])
        assert run.exit_code == 2 and says in run.output


def test_settings_are_json_or_text() -> None:
    given = 'mine.py:Mine:a=1, b=0.5,c=true,d=null,e=[1,2],f=fast one,g="1",h={"i": [3]}'
    assert policy_choice.parse_call(given, "policy") == (
        "mine.py:Mine",
        {"a": 1, "b": 0.5, "c": True, "d": None, "e": [1, 2], "f": "fast one", "g": "1",
         "h": {"i": [3]}},
    )  # fmt: skip


def test_the_reduction_factor_is_the_policys_own_unless_somebody_says_another(
    sqlite_url: str,
) -> None:
    def agreed(name: str, policy: str | None, factor: int | None) -> Any:
        study = optuna.create_study(study_name=name, storage=sqlite_url, load_if_exists=True)
        parameters = {**RESOURCES, "reduction_factor": factor}
        return agree(study, "1h", Given(policy, parameters)).parameters["reduction_factor"]

    assert agreed("default", None, None) == AdaptiveHalving().reduction_factor == 2
    assert agreed("named", "hypersched", None) == HyperSched().reduction_factor == 4
    assert agreed("given", None, 5) == 5
    assert agreed("without rungs", "fifo", None) == 4
    assert agreed("given", None, None) == 5, "what holds already"


@pytest.mark.parametrize("name", sorted(registry._OURS))
def test_each_field_of_a_policy_takes_its_own_kind_of_value_alone(name: str) -> None:
    made = policy_choice.make(name, {})
    for each in [one for one in fields(made) if one.init]:  # type: ignore[arg-type]
        for bad in ("abc", [1], math.nan):
            with pytest.raises(DeadlineError, match=rf"\b{each.name}\b|signal 'abc'|{bad!r}"):
                policy_choice.make(name, {each.name: bad})


def test_a_policy_of_a_users_takes_its_kinds_of_values_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    assert policy_choice.make(f"{tmp_path}/mine.py:Patient", {"patience": 2}).patience == 2  # type: ignore[attr-defined]
    with pytest.raises(DeadlineError, match="patience must be a whole number, but got 'abc'"):
        policy_choice.make(f"{tmp_path}/mine.py:Patient", {"patience": "abc"})
