"""Policies side by side on the same seeds, so that their differences can be paired."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from optuna_deadline.policies import make_policy
from optuna_deadline.simulation.cluster import Cluster
from optuna_deadline.simulation.families import generate
from optuna_deadline.simulation.outcome import Outcome
from optuna_deadline.simulation.simulation import simulate


@dataclass(frozen=True)
class Case:
    """One study to simulate; the workload is drawn where it runs.

    Attributes:
        deadline: In seconds, or in whole trainings on one slot where ``relative``.
    """

    policy: str
    family: str
    seed: int
    cluster: Cluster
    deadline: float
    relative: bool
    steps: int
    parameters: tuple[tuple[str, int], ...] = ()

    def run(self) -> Outcome:
        """Simulate it."""
        workload = generate(self.family, self.seed, steps=self.steps)
        seconds = self.deadline * (workload.full_seconds if self.relative else 1.0)
        parameters = {"max_resource": self.steps, **dict(self.parameters)}
        policy = make_policy(self.policy, parameters)
        return simulate(policy, workload, self.cluster, deadline=seconds, seed=self.seed)


def run_all(cases: Sequence[Case], jobs: int = 1) -> Iterator[Outcome]:
    """The outcomes in the order of the cases, each as soon as it is there."""
    if jobs == 1:
        yield from map(Case.run, cases)
        return
    with ProcessPoolExecutor(jobs) as executor:
        yield from executor.map(Case.run, cases)


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error; None where one value cannot tell."""

    mean: float
    error: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Of independent values."""
        error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
        return cls(statistics.fmean(values), error)

    def __str__(self) -> str:
        spread = "" if self.error is None else f" ±{self.error:.3f}"
        return f"{self.mean:.3f}{spread}"


@dataclass(frozen=True)
class Row:
    """One policy over all seeds."""

    policy: str
    regret: Estimate
    choice_regret: Estimate
    difference: Estimate | None  #: of the regret to the first policy's, seed by seed
    utilisation: float
    trials: float
    resizes: float
    overshoot: float  #: the worst, in seconds


def summarise(policies: Sequence[str], outcomes: Sequence[Outcome]) -> list[Row]:
    """One row for each policy; the outcomes are ordered by seed, then by policy."""
    rows = []
    first = outcomes[:: len(policies)]
    for index, policy in enumerate(policies):
        mine = outcomes[index :: len(policies)]
        pairs = zip(mine, first, strict=True)
        differences = [one.regret - other.regret for one, other in pairs]
        rows.append(
            Row(
                policy=policy,
                regret=Estimate.of([outcome.regret for outcome in mine]),
                choice_regret=Estimate.of([outcome.choice_regret for outcome in mine]),
                difference=Estimate.of(differences) if index else None,
                utilisation=statistics.fmean(outcome.utilisation for outcome in mine),
                trials=statistics.fmean(outcome.trials for outcome in mine),
                resizes=statistics.fmean(outcome.resizes for outcome in mine),
                overshoot=max(outcome.overshoot for outcome in mine),
            )
        )
    return rows
