"""People ask for this and that while a simulated study runs, and it obeys to its end."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from allocation.suite.world import assert_legal

from optuna_deadline.policies import make_policy
from optuna_deadline.simulation import Cluster, Faults, Simulation, generate
from optuna_deadline.simulation.study import events

STEPS = 20
HOSTS, SLOTS = 2, 3
#: Seconds within which the plan knows of a request, and a gang has left its slots or come back.
NOTICE = 10.0


class Person:
    """Holds, pins and drains by chance, and takes most of it back."""

    def __init__(self, simulation: Simulation, rng: random.Random, every: float) -> None:
        self.world, self.rng, self.every = simulation.world, rng, every

    def act(self) -> None:
        """Ask for something, and come back later."""
        world, rng, table = self.world, self.rng, self.world.table
        living = [line for line in table.trials() if line.alive]
        if living:
            line = rng.choice(living)
            rng.choice([
                lambda: table.hold(line.number, rng.random() < 0.5),
                lambda: table.pin(line.number, rng.choice([None, 1, 2, 3])),
                lambda: table.drain("host1", rng.random() < 0.3),
            ])()  # fmt: skip
            for other in living:  # nobody is held for good
                if other.held is not None and rng.random() < 0.5:
                    table.hold(other.number, False)
        for worker in world.workers.values():
            worker.wake_planner()
        world.timeline.after(self.every, self.act)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", ["hypersched", "fifo", "hermes", "asha_promote"])
def test_what_people_ask_for_is_obeyed(policy: str, seed: int) -> None:
    tuned = generate("crossing", seed, configurations=32, steps=STEPS)
    cluster = Cluster(slots=SLOTS, hosts=HOSTS, faults=Faults(crash_every=500.0))
    deadline = 2.0 * tuned.full_seconds
    chosen = make_policy(policy, {"max_resource": STEPS})
    simulation = Simulation(chosen, tuned, cluster, deadline=deadline, seed=seed)
    person = Person(simulation, random.Random(seed), every=deadline / 40)
    simulation.world.timeline.after(person.every, person.act)
    outcome = simulation.run()
    assert outcome.overshoot <= 0 and outcome.value is not None

    log = events(simulation.world)
    assert_legal(log)
    used, asked, drained, last = 0, 0, False, 0.0
    since: dict[int, float] = {}  # when something else was asked of a trial last
    wanted: dict[int, int] = {}  # the size that is asked for, 0 where it is held
    pins: dict[int, int] = {}
    sizes: Counter[int] = Counter()
    slots = {slot.id: slot.host for slot in simulation.world.table.slots()}
    for event in log:
        number = event.number or 0
        for other, size in wanted.items() if event.at > last else ():  # gangs are whole by then
            if last > since[other] + NOTICE:
                assert sizes[other] in (0, size), (event, other)
        last = event.at
        if event.kind in ("hold", "pin"):
            asked, since[number] = asked + 1, event.at
            if event.kind == "pin":
                pins[number] = int(str(event.detail["slots"] or 0))
            held = event.detail.get("held", wanted.get(number) == 0)
            wanted.pop(number, None)
            if held or pins.get(number):
                wanted[number] = 0 if held else pins[number]
        elif event.kind == "drain":
            asked, drained = asked + 1, bool(event.detail["drained"])
        elif event.kind == "acquire":
            used, sizes[number] = used + 1, sizes[number] + 1
            assert used <= HOSTS * SLOTS
            assert not (drained and slots[event.slot or 0] == "host1")
        elif event.kind in ("release", "reap"):
            used, sizes[number] = used - 1, sizes[number] - 1
        elif event.kind in ("start", "resume"):
            assert wanted.get(number) != 0, "it is held"
        elif event.kind in ("retired", "complete", "failed"):
            wanted.pop(number, None)
    assert asked > 10
