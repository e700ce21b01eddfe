"""Simulates policies with the same seeds, so that their differences can be paired."""

from __future__ import annotations

import gc
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path
from typing import Any, Protocol, TypeVar

from optuna_deadline.simulation.cluster import Cluster
from optuna_deadline.simulation.study import Outcome, simulate
from optuna_deadline.simulation.tables import draw
from optuna_deadline.study import policy_choice

Found = TypeVar("Found", covariant=True)
Given = TypeVar("Given")
Result = TypeVar("Result")


class Runnable(Protocol[Found]):
    """A case that another process can run."""

    def run(self) -> Found:
        """Run it."""


@dataclass(frozen=True)
class Case:
    """One study to simulate; the workload is drawn in the process that runs it.

    Attributes:
        policy: Its name, or its place in a file or module.
        family: A generated family, or a recorded workload's name.
        deadline: In seconds, or in full trainings on one slot if ``relative``.
        steps: Steps of a full training of a generated workload.
        parameters: Parameters of the policy.
        data: The folder of recorded data; the project's own table by default.
    """

    policy: str
    family: str
    seed: int
    cluster: Cluster
    deadline: float
    relative: bool
    steps: int
    parameters: tuple[tuple[str, Any], ...] = ()
    data: Path | None = None

    def run(self) -> Outcome:
        """Simulate it."""
        workload = draw(self.family, self.seed, steps=self.steps, data=self.data)
        seconds = self.deadline * (workload.full_seconds if self.relative else 1.0)
        parameters = {"max_resource": workload.steps, **dict(self.parameters)}
        policy = policy_choice.make(self.policy, parameters)
        return simulate(policy, workload, self.cluster, deadline=seconds, seed=self.seed)


def run_all(cases: Sequence[Runnable[Found]], jobs: int = 1) -> Iterator[Found]:
    """Yield the outcomes of the cases in order, each as soon as it is known."""
    return work_through(methodcaller("run"), cases, jobs)


def work_through(
    work: Callable[[Given], Result], cases: Sequence[Given], jobs: int = 1
) -> Iterator[Result]:
    """Yield the results of some work on each case in order, each as soon as it is known.

    Args:
        work: A function that other processes can import.
        cases: Its arguments.
        jobs: The number of processes; with one, this process does the work.
    """
    if jobs == 1:
        yield from map(work, cases)
        return
    with ProcessPoolExecutor(jobs, initializer=collect_seldom) as executor:
        yield from executor.map(work, cases)


def collect_seldom() -> None:
    """Make the garbage collector of a process that only simulates run less often.

    A study keeps nearly all objects until its end, so frequent collections take a fifth of the
    time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error; None for a single value."""

    mean: float
    error: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """The estimate from independent values."""
        error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
        return cls(statistics.fmean(values), error)

    def __str__(self) -> str:
        spread = "" if self.error is None else f" ±{self.error:.3f}"
        return f"{self.mean:.3f}{spread}"


@dataclass(frozen=True)
class PolicyRow:
    """One policy over all seeds of one family.

    If the family has several workloads, errors are between the workloads' means, because the seeds
    of one table are not independent evidence for other tables.
    """

    policy: str
    regret: Estimate
    choice_regret: Estimate
    difference: Estimate | None  #: regret minus the first policy's, paired by seed
    utilisation: float
    trials: float
    resizes: float
    overshoot: float  #: the worst, in seconds
    family: str = ""


def summarise(
    policies: Sequence[str], outcomes: Sequence[Outcome], family: str = ""
) -> list[PolicyRow]:
    """One row per policy; the outcomes of each workload and seed are ordered by policy."""
    rows = []
    first = outcomes[:: len(policies)]
    for index, policy in enumerate(policies):
        mine = outcomes[index :: len(policies)]
        pairs = zip(mine, first, strict=True)
        differences = [one.regret - other.regret for one, other in pairs]
        rows.append(
            PolicyRow(
                policy=policy,
                regret=_estimate(mine, [outcome.regret for outcome in mine]),
                choice_regret=_estimate(mine, [outcome.choice_regret for outcome in mine]),
                difference=_estimate(mine, differences) if index else None,
                utilisation=statistics.fmean(outcome.utilisation for outcome in mine),
                trials=statistics.fmean(outcome.trials for outcome in mine),
                resizes=statistics.fmean(outcome.resizes for outcome in mine),
                overshoot=max(outcome.overshoot for outcome in mine),
                family=family,
            )
        )
    return rows


def _estimate(outcomes: Sequence[Outcome], values: Sequence[float]) -> Estimate:
    by_workload: dict[str, list[float]] = defaultdict(list)
    for outcome, value in zip(outcomes, values, strict=True):
        by_workload[outcome.workload].append(value)
    if len(by_workload) == 1:
        return Estimate.of(values)
    return Estimate.of([statistics.fmean(mine) for mine in by_workload.values()])
