"""Looks at the table that would see nothing new are left out, and nothing else changes by that."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.policies import Plan, Policy, Snapshot, make_policy
from optuna_deadline.simulation import Cluster, Faults, Simulation, generate
from optuna_deadline.simulation.clock import SkippableTimer, Timeline
from optuna_deadline.simulation.study import events

pytestmark = [
    pytest.mark.slow_names(r"^test_who_is_asked_less"),
    pytest.mark.nightly_but(r"asha|hypersched"),
]

BEATS = 20


class AskedAlways:
    """A policy whose plans name no time until which they hold."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def plan(self, snapshot: Snapshot) -> Plan:
        return replace(self._policy.plan(snapshot), holds_until=None)


def study(
    name: str, *, asked: bool = False, pace: float = 100.0, faults: bool = True
) -> Simulation:
    tuned = generate("power-law", 3, configurations=32, steps=20, step_seconds=pace)
    policy = make_policy(name, {"max_resource": 20})
    trouble = Faults(crash_every=60 * pace, host_every=200 * pace, straggler_share=0.2)
    cluster = Cluster(slots=2, hosts=2, faults=trouble if faults else Faults())
    chosen = AskedAlways(policy) if asked else policy
    return Simulation(chosen, tuned, cluster, deadline=3 * tuned.full_seconds, seed=1)


@pytest.mark.parametrize("name", ["hypersched", "asha_promote", "fifo"])
def test_who_is_asked_less_often_decides_the_same(name: str) -> None:
    rare, always = study(name), study(name, asked=True)
    assert rare.run() == always.run()
    assert {(event.at, event.kind, event.number, event.slot) for event in events(rare.world)} == {
        (event.at, event.kind, event.number, event.slot) for event in events(always.world)
    }


def test_long_epochs_cost_no_more_events_than_short_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = []
    advance = Timeline.advance

    def counted(timeline: Timeline) -> bool:
        counts[-1] += 1
        return advance(timeline)

    monkeypatch.setattr(Timeline, "advance", counted)
    for pace in (30.0, 3000.0):
        counts.append(0)
        study("hypersched", pace=pace, faults=False).run()
    assert counts[1] < 2 * counts[0], "with a look a second it would be a hundred times as many"


@given(
    rests=st.lists(st.sampled_from([0.0, 2.5, 7.0, math.inf]), min_size=BEATS, max_size=BEATS),
    calls=st.lists(st.tuples(st.floats(0.0, 30.0), st.booleans()), max_size=8),
    interval=st.sampled_from([0.5, 1.0, 1.7]),
)
def test_beats_that_are_left_out_are_counted_and_the_others_come_in_time(
    rests: list[float], calls: list[tuple[float, bool]], interval: float
) -> None:
    timeline, beats, missed = Timeline(), list[float](), list[float]()
    left = iter(rests)

    def beat() -> None:
        beats.append(timeline.now())
        if timeline.now() < 40.0:
            rhythm.skip_until(timeline.now() + next(left, 0.0))

    rhythm = SkippableTimer(timeline, interval, beat, missed.append)
    rhythm.restart(0.0)
    shifts = {0.0}
    for instant, moves in sorted(calls):

        def call(instant: float = instant, moves: bool = moves) -> None:
            before = len(beats)
            rhythm.fire_by(instant + 0.2) if moves else rhythm.wake()
            assert len(beats) == before
            shifts.add(instant + 0.2)

        timeline.at(instant, call)
    while timeline.advance():
        pass
    rhythm.stop()
    assert beats == sorted(beats) and len(set(beats)) == len(beats)
    seen = sorted({*beats, *missed})
    assert len(seen) == len(beats) + len(missed), "a beat comes or is left out"
    for one, other in pairwise(seen):
        on_the_grid = math.isclose(other - one, interval, rel_tol=1e-9)
        assert on_the_grid or (other in shifts and other - one < interval)
