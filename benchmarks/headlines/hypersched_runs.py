"""One simulated study for HyperSched's main results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optuna_deadline.allocation.records import SegmentRow
from optuna_deadline.policies import make_policy
from optuna_deadline.simulation import Cluster, Simulation, generate
from optuna_deadline.simulation.tables import draw

#: The paper's setting: ResNet-50 on CIFAR-10 on one machine with eight V100, and its S(k).
SLOTS, CONFIGURATIONS, STEPS = 8, 144, 200
RUNGS = {"min_resource": 2, "reduction_factor": 4}

#: Our recording of 30 epochs; its training takes as long as that of generated curves.
RECORDED = "recorded/digits"

#: Seconds of a step on one slot. A whole training takes 50 minutes, longer than two of the three
#: deadlines. This is our choice, since the paper's value is unknown.
STEP_SECONDS = 15.0


@dataclass(frozen=True)
class Case:
    """One study; the same seed draws the same curves under every policy."""

    policy: str
    family: str
    seed: int
    deadline: float
    parameters: tuple[tuple[str, bool], ...] = ()

    def make(self) -> Simulation:
        """The study at its start."""
        if self.family == RECORDED:
            workload = draw(RECORDED, self.seed, steps=STEPS)
            workload = workload.slowed(STEPS * STEP_SECONDS / workload.full_seconds)
        else:
            workload = generate(
                self.family,
                self.seed,
                configurations=CONFIGURATIONS,
                steps=STEPS,
                step_seconds=STEP_SECONDS,
            )
        rungs = {**RUNGS, "max_resource": workload.steps}
        policy = make_policy(self.policy, {**rungs, **dict(self.parameters)})
        return Simulation(policy, workload, Cluster(slots=SLOTS), deadline=self.deadline)


@dataclass(frozen=True)
class Result:
    """The result of a study."""

    score: float  #: of the best model at the deadline
    trials: int
    resizes: int
    alone: float  #: the share of the time in which one trial holds the whole pool
    ends_alone: bool  #: whether one trial holds it at the end


def run(case: Case) -> Result:
    """Simulate one study."""
    simulation = case.make()
    outcome = simulation.run()
    segments = simulation.world.table.segments()
    whole = [row for row in segments if row.slots == SLOTS]
    seconds = sum(_end(row, outcome.ended) - row.granted for row in whole)
    # Ranks leave shortly before the deadline.
    last = max((_end(row, outcome.ended) for row in segments), default=0.0)
    return Result(
        score=0.0 if outcome.value is None else outcome.value,
        trials=outcome.trials,
        resizes=outcome.resizes,
        alone=seconds / case.deadline,
        ends_alone=any(_end(row, outcome.ended) == last for row in whole),
    )


def allocation(case: Case) -> list[tuple[int, int, float, float]]:
    """The slots of each trial over time: (trial, slots, begin, end)."""
    simulation = case.make()
    ended = simulation.run().ended
    rows: Sequence[SegmentRow] = simulation.world.table.segments()
    return [(row.number, row.slots, row.granted, _end(row, ended)) for row in rows]


def _end(row: SegmentRow, ended: float) -> float:
    return ended if row.ended is None else row.ended
