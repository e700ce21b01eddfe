"""What must hold of every simulated study."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from allocation.suite.world import assert_legal

from optuna_deadline.errors import DeadlineError
from optuna_deadline.planning.best_model import find_winner
from optuna_deadline.policies import make_policy
from optuna_deadline.simulation import (
    ANTI,
    FAMILIES,
    LINEAR,
    Cluster,
    Faults,
    Funding,
    Outcome,
    Simulation,
    Workload,
    generate,
    simulate,
)
from optuna_deadline.simulation.environment import World
from optuna_deadline.simulation.study import events
from optuna_deadline.worker.rules import MAX_DEATHS

STEPS = 30
CLUSTER = Cluster(slots=4)
TROUBLE = Faults(crash_every=400.0, straggler_share=0.2)


def workload(family: str = "power-law", seed: int = 0) -> Workload:
    return generate(family, seed, configurations=64, steps=STEPS)


def study(
    policy: str = "hypersched",
    family: str = "power-law",
    cluster: Cluster = CLUSTER,
    seed: int = 0,
    times: float = 3.0,
    **parameters: int,
) -> Simulation:
    tuned = workload(family, seed)
    chosen = make_policy(policy, {"max_resource": STEPS, **parameters})
    return Simulation(chosen, tuned, cluster, deadline=times * tuned.full_seconds, seed=seed)


def in_use(simulation: Simulation) -> list[tuple[float, int]]:
    """How many slots are held from each change on."""
    used, found = 0, []
    for event in events(simulation.world):
        if event.slot is not None:
            used += 1 if event.kind == "acquire" else -1
            found.append((event.at, used))
    return found


def test_reports_come_after_the_seconds_that_each_of_them_takes() -> None:
    """Turns end within steps, so a position is a time between two reports, and none is lost."""
    seconds = tuple(20.0 if step < 10 else 5.0 for step in range(STEPS))
    slow = replace(workload(), report_seconds=(seconds,) * 64, step_seconds=(10.0,) * 64)
    turns = make_policy("round_robin", {"max_resource": STEPS, "n_trials": 8, "quantum": 33.0})
    simulation = Simulation(turns, slow, CLUSTER, deadline=8000.0)
    outcome = simulation.run()
    assert outcome.pauses > 20 and outcome.redone == 0
    assert outcome.training == pytest.approx(8 * sum(seconds))
    trained = {row.step: row.trained for row in simulation.world.table.reports(number=3)}
    assert [trained[step] for step in range(1, STEPS + 1)] == pytest.approx(np.cumsum(seconds))


@pytest.mark.parametrize("faults", [Faults(), TROUBLE], ids=["calm", "trouble"])
@pytest.mark.parametrize("policy", ["hypersched", "asha_promote", "successive_halving"])
def test_slot_seconds_are_conserved(policy: str, faults: Faults) -> None:
    simulation = study(policy, cluster=replace(CLUSTER, faults=faults))
    outcome = simulation.run()
    # Idle time is read from the audit, the rest from the workers' own bills.
    spent = outcome.training + outcome.overhead + outcome.idle
    assert spent == pytest.approx(outcome.capacity * outcome.ended)
    assert outcome.stranded == pytest.approx(0.0, abs=1e-6)
    assert max(used for _, used in in_use(simulation)) <= CLUSTER.capacity
    assert_legal(events(simulation.world))


@pytest.mark.parametrize(
    "policy",
    ["hypersched", "fifo", "asha", "asha_promote", "median", "successive_halving", "hyperband",
     "hermes", "round_robin"],
)  # fmt: skip
def test_the_deadline_is_kept_and_a_model_is_in_hand(policy: str) -> None:
    outcome = study(policy, family="diverging", times=1.5).run()
    assert outcome.overshoot <= 0
    assert outcome.value is not None and outcome.regret >= 0 and outcome.choice_regret >= 0
    assert outcome.best_at(outcome.ended) == outcome.value
    assert outcome.best_at(0.0) is None


@pytest.mark.parametrize("family", ["power-law", "plateau-then-drop", "diverging"])
@pytest.mark.parametrize("policy", ["successive_halving", "asha", "adaptive_halving"])
def test_the_winner_is_complete_though_it_stopped_or_failed(policy: str, family: str) -> None:
    faults = Faults(crash_every=200.0, host_every=900.0, straggler_share=0.2)
    cluster = Cluster(slots=4, hosts=2, faults=faults)
    simulation = study(policy, family, cluster, seed=1, max_resource=30)
    simulation.run()
    world = simulation.world
    winner = find_winner(world.table, "maximize", world.disk.has_checkpoint)
    assert winner is not None
    assert world.table.trials()[winner.number].state == "complete"
    assert world.trials.ends[winner.number] == "complete"


def test_the_same_seed_gives_the_same_log() -> None:
    first, again = (study(cluster=replace(CLUSTER, faults=TROUBLE)) for _ in range(2))
    assert first.run() == again.run()
    assert events(first.world) == events(again.world)
    assert events(first.world) != events(study(seed=1).world)


@pytest.mark.parametrize("policy", ["hypersched", "hyperband"])
def test_no_report_is_lost_and_none_is_made_up(policy: str) -> None:
    simulation = study(policy, cluster=replace(CLUSTER, faults=TROUBLE))
    simulation.run()
    world = simulation.world
    seen: dict[int, list[int]] = defaultdict(list)
    for row in world.table.reports():
        seen[row.number].append(row.step)
        curve = world.workload.curves[world.workload.configuration(row.number)]
        assert row.value == curve[row.step - 1]
    for number, steps in seen.items():
        assert steps == list(range(1, len(steps) + 1)), number


def test_a_paused_trial_loses_no_progress() -> None:
    simulation = study("asha_promote", times=4.0, reduction_factor=2)
    outcome = simulation.run()
    assert outcome.resumes > 0 and outcome.redone == 0
    stretches: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for row in simulation.world.table.segments():
        if row.position_from is None or row.position_to is None:
            continue  # the deadline came while it started up
        stretches[row.number].append((row.position_from, row.position_to))
    for parts in stretches.values():
        assert [begin for begin, _ in parts[1:]] == [end for _, end in parts[:-1]]


def test_a_failure_is_resumed_from_its_checkpoint() -> None:
    faults = Faults(crash_every=300.0)
    simulation = study("fifo", "crossing", replace(CLUSTER, save_every=25.0, faults=faults))
    outcome = simulation.run()
    assert outcome.failures > 3 and outcome.redone > 0
    by_trial: dict[int, list[tuple[str | None, float]]] = defaultdict(list)
    for row in simulation.world.table.segments():
        assert row.position_from is not None
        by_trial[row.number].append((row.outcome, row.position_from))
    after = [
        position
        for parts in by_trial.values()
        for (ended, _), (_, position) in pairwise(parts)
        if ended == "died"
    ]
    assert after and max(after) > 1


def test_a_checkpoint_between_deaths_begins_their_count_anew() -> None:
    faults = Faults(crash_every=60.0)
    simulation = study("hypersched", "crossing", Cluster(slots=2, hosts=2, faults=faults), times=5)
    simulation.run()
    table, failed = simulation.world.table, 0
    saved = {(e.number, e.fence) for e in events(simulation.world) if e.kind == "checkpoint"}
    for trial in (trial for trial in table.trials() if trial.state == "failed"):
        segments = [row for row in table.segments() if row.number == trial.number]
        last = [row.fence for row in segments if row.outcome == "died"][-MAX_DEATHS:]
        assert saved.isdisjoint((trial.number, fence) for fence in last[1:])
        failed += 1
    assert failed


def test_a_dead_host_is_reaped_and_its_trials_go_on() -> None:
    cluster = Cluster(slots=2, hosts=2, faults=Faults(host_every=500.0), ttl=10.0, grace=5.0)
    simulation = study(cluster=cluster, times=4.0)
    outcome = simulation.run()
    log = events(simulation.world)
    assert outcome.stranded > 0 and outcome.failures > 0
    assert any(event.kind == "reap" for event in log)
    assert max(used for _, used in in_use(simulation)) <= cluster.capacity
    assert outcome.value is not None
    assert_legal(log)


@pytest.mark.parametrize("seed", range(3))
def test_the_survivor_ends_with_the_whole_pool(seed: int) -> None:
    """HyperSched's characteristic act, where a training is longer than the pool has time for."""
    tuned = generate("power-law", seed, configurations=64, steps=1000)
    policy = make_policy("hypersched", {"max_resource": 1000})
    cluster = Cluster(slots=4, speedup=LINEAR)
    simulation = Simulation(policy, tuned, cluster, deadline=0.2 * tuned.full_seconds)
    outcome = simulation.run()
    last = max(simulation.world.table.segments(), key=lambda row: row.granted)
    assert last.slots == 4 and last.outcome == "deadline" and outcome.resizes > 0
    assert last.trained is not None and last.trained > 0.25 * outcome.deadline


def test_a_gang_that_is_slower_is_given_up() -> None:
    simulation = study(family="crossing", cluster=Cluster(slots=4, speedup=ANTI), times=2.0)
    simulation.run()
    rows = sorted(simulation.world.table.segments(), key=lambda row: row.granted)
    tries = [row for row in rows if row.slots > 1]
    assert len(tries) < 0.1 * len(rows) and rows[-1].slots == 1


def test_a_straggler_takes_longer() -> None:
    slow = Faults(straggler_share=1.0, straggler_factor=3.0)
    assert (
        study("fifo", cluster=replace(CLUSTER, faults=slow)).run().reports
        < 0.5 * study("fifo").run().reports
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_families_are_values(family: str) -> None:
    tuned = generate(family, 3, configurations=16, steps=20)
    again = generate(family, 3, configurations=16, steps=20)
    assert tuned.step_seconds == again.step_seconds and repr(tuned.curves) == repr(again.curves)
    assert tuned.curves != generate(family, 4, configurations=16, steps=20).curves
    scores = [score for curve in tuned.curves for score in curve if not math.isnan(score)]
    assert min(scores) > -0.5 and max(scores) == tuned.best < 1.1
    assert tuned.steps == 20 and tuned.configuration(17) == 1


def test_the_best_are_slow_and_no_better_at_first_where_their_cost_is_tied_to_quality() -> None:
    drawn = generate("slow-and-best", 0, configurations=300)
    first, last = (np.array([curve[place] for curve in drawn.curves]) for place in (0, -1))
    pace = np.log(drawn.step_seconds)
    assert np.corrcoef(pace, last)[0, 1] > 0.9
    assert np.corrcoef(first, last)[0, 1] < 0.8


def test_everything_counts_in_a_study_of_one_trial() -> None:
    one = Workload("one", ((0.1, 0.5, 0.4),), (10.0,))
    cluster = Cluster(slots=1, startup=5.0, stop=1.0, poll=1.0, reading=0.0)
    policy = make_policy("asha_promote", {"min_resource": 9, "n_trials": 1})
    outcome: Outcome = simulate(policy, one, cluster, deadline=100.0)
    assert [value for _, value in outcome.best] == [0.1, 0.5]
    assert outcome.training == pytest.approx(30.0) and outcome.overhead == pytest.approx(5.0)
    assert outcome.regret == 0 and outcome.value == 0.5
    assert outcome.ended < 100 - 50, "settled as soon as nothing was left to train"


@pytest.mark.parametrize("deadline", [100, "100s", timedelta(seconds=100)])
def test_a_name_and_a_duration_are_taken_as_in_live_calls(deadline: Any) -> None:
    one = generate("climbing", 1, configurations=8, steps=4)
    expected = simulate(make_policy("fifo", {}), one, deadline=100.0)
    assert simulate("fifo", one, deadline=deadline) == expected
    with pytest.raises(DeadlineError, match="no policy 'fifa'"):
        simulate("fifa", one, deadline=deadline)
    with pytest.raises(DeadlineError, match="deadline needs a duration"):
        simulate("fifo", one, deadline="2030-01-31T18:00+01:00")
    expected = simulate("fifo", one, deadline=2 * one.full_seconds)
    assert simulate("fifo", one, deadline="2x") == expected


def test_a_search_chooses_what_a_trial_trains_once_and_for_all() -> None:
    asked: list[int] = []

    def backwards(world: World, number: int) -> int:
        asked.append(number)
        return -1 - number % len(world.workload.curves)

    tuned = workload()
    policy = make_policy("hypersched", {"max_resource": STEPS})
    deadline = 3 * tuned.full_seconds
    simulation = Simulation(policy, tuned, CLUSTER, deadline=deadline, search=backwards)
    outcome = simulation.run()
    assert outcome.pauses > 0 and len(asked) == len(set(asked)) == outcome.trials
    for row in simulation.world.table.reports():
        assert row.value == tuned.curves[-1 - row.number % 64][row.step - 1]


@pytest.mark.parametrize(
    "mistaken",
    [
        lambda: Cluster(slots=0),
        lambda: Cluster(slots=2.5),  # type: ignore[arg-type]
        lambda: Cluster(hosts=-1),
        lambda: Cluster(startup=math.nan),
        lambda: Cluster(across=1.5),
        lambda: Faults(crash_every=-1.0),
        lambda: Faults(straggler_share=2.0),
        lambda: Funding(budget=-1.0),
        lambda: Funding(budget=1.0, offer=0),
    ],
)
def test_hosts_that_cannot_be_are_refused(mistaken: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"must be a (whole )?number (from|between)"):
        mistaken()


def test_a_family_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no family 'crosing'; there are power-law, crossing"):
        generate("crosing", 1)
