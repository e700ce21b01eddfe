"""The rest of a study, simulated once: what it ends with and what that has cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from optuna_deadline.history.series import area, in_use
from optuna_deadline.planning.settlement import find_winner
from optuna_deadline.policies.api import Policy
from optuna_deadline.scenarios.futures import Change, make_world
from optuna_deadline.scenarios.initial_state import Present
from optuna_deadline.simulation.workload import Workload


@dataclass(frozen=True)
class End:
    """How one simulated rest of a study ends.

    Attributes:
        score: Of the best model in hand, larger is better.
        slot_seconds: That its trials held slots, since the study began.
        spent: Money since the study began; None where slots cost nothing.
        opened: Trials that were opened from now on.
    """

    score: float
    slot_seconds: float
    spent: float | None
    opened: int


def run(
    present: Present,
    rest: Workload,
    change: Change,
    make: Callable[[], Policy],
    looks: int | None = None,
) -> End:
    """Simulate one rest of a study, under its policy, from now to its end.

    Args:
        present: Where the study stands.
        rest: What its trials will come to.
        change: What would be different.
        make: Makes the policy, for each run its own.
        looks: At the plan until the end; as many as usual unless given.
    """
    history = present.history
    before = area(in_use(history.holds), history.started, history.now)
    world = make_world(present, rest, change, make(), looks)
    while world.at_work and world.timeline.now() <= world.latest and world.timeline.advance():
        pass
    world.say_all()
    winner = find_winner(world.table, "maximize", world.disk.holds)
    best = present.sign * history.improvements[-1].value
    bill, opened = world.bill, world.trials.opened - max(present.lines, default=-1) - 1
    spent, now = None, world.timeline.now()
    if world.purse is not None:
        world.purse.read(now)
        spent = world.purse.money(now, {}, 0).spent
    return End(
        score=best if winner is None else max(best, winner.value),
        slot_seconds=before + bill.training + bill.overhead,
        spent=spent,
        opened=opened,
    )
