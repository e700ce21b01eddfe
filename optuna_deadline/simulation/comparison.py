"""Simulates policies with the same seeds, so that their differences can be paired."""

from __future__ import annotations

import copy
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from optuna_deadline._garbage import collect_seldom
from optuna_deadline._numbers import plain_number
from optuna_deadline._optuna import experimental_func
from optuna_deadline.errors import DeadlineError, check_counts
from optuna_deadline.forecasting.throughput import Speedup
from optuna_deadline.simulation.cluster import SUBLINEAR, Cluster
from optuna_deadline.simulation.study import Outcome, read_deadline, simulate
from optuna_deadline.simulation.tables import choose, draw
from optuna_deadline.simulation.workload import Workload
from optuna_deadline.study import policy_choice
from optuna_deadline.study.policy_choice import PolicyLike
from optuna_deadline.values.deadlines import DeadlineLike

if TYPE_CHECKING:
    import pandas as pd

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
        policy: The policy; an object of the user's is copied for each study.
        family: A generated family, a recorded workload's name, or a workload.
        deadline: In seconds, or in full trainings on one slot if ``relative``.
        steps: Steps of a full training of a generated workload.
        parameters: Parameters of the policy.
        data: The folder of recorded data; the project's own table by default.
    """

    policy: PolicyLike
    family: str | Workload
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
        policy = policy_choice.make(copy.deepcopy(self.policy), parameters)
        return simulate(policy, workload, self.cluster, deadline=seconds, seed=self.seed)


def paired_cases(
    setting: Case, policies: Sequence[PolicyLike], workloads: Sequence[str | Workload], seeds: int
) -> list[Case]:
    """The cases of all policies, workloads and seeds in the order that :func:`summarise` reads.

    Args:
        setting: All else of a case.
        policies: The policies.
        workloads: Generated families, recorded workloads, and workloads themselves.
        seeds: Studies of each workload.
    """
    return [
        replace(setting, policy=policy, family=workload, seed=seed)
        for workload in workloads
        for seed in range(seeds)
        for policy in policies
    ]


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


@dataclass(frozen=True)
class Comparison:
    """Policies on the same simulated studies.

    Attributes:
        title: What was simulated, in words.
        rows: One row per family and policy, the first policy first.
    """

    title: str
    rows: tuple[PolicyRow, ...]

    def to_frame(self) -> pd.DataFrame:
        """The rows as a pandas frame: means over seeds, with standard errors.

        ``difference`` is the regret minus the first policy's, paired by seed.
        """
        import pandas as pd

        return pd.DataFrame([_flat(row) for row in self.rows])


def _flat(row: PolicyRow) -> dict[str, Any]:
    difference = row.difference or Estimate(0.0, None)
    return {
        "family": row.family,
        "policy": row.policy,
        "regret": row.regret.mean,
        "regret_error": row.regret.error,
        "difference": difference.mean,
        "difference_error": difference.error,
        "choice_regret": row.choice_regret.mean,
        "utilisation": row.utilisation,
        "trials": row.trials,
        "resizes": row.resizes,
        "overshoot": row.overshoot,
    }


@experimental_func("0.1.0")
def compare(
    policies: PolicyLike | Sequence[PolicyLike] | Mapping[str, PolicyLike],
    families: str | Workload | Sequence[str | Workload] = "power-law",
    *,
    slots: int = 8,
    deadline: DeadlineLike = "4x",
    seeds: int = 10,
    steps: int = 81,
    speedup: Speedup = SUBLINEAR,
    data: Path | None = None,
    jobs: int = 1,
) -> Comparison:
    """Compare policies on learning curves in virtual time, without a GPU.

    Each policy has the same studies, with the same seeds, so that differences are paired.

    Example:
        ```python
        from optuna_deadline.simulation import compare

        found = compare(["adaptive_halving", "fifo"], "crossing", slots=4, seeds=5)
        print(found.to_frame())
        ```

    Args:
        policies: The policies, as for :func:`optuna_deadline.run`; a mapping names them.
        families: Learning curves: a generated family, with ``data`` a kind of recorded table, or
            a :class:`Workload` of your own, which each seed has in another order.
        slots: Slots of one host.
        deadline: "4x": this many whole trainings on one slot; or a duration.
        seeds: Studies of each workload.
        steps: Report steps of a whole training of generated curves.
        speedup: The true speed of k slots.
        data: Folder of recorded data.
        jobs: Processes; the policies must then be picklable.

    Raises:
        DeadlineError: An argument is invalid, or a policy does not exist.
    """
    slots, seeds, steps, jobs = map(plain_number, (slots, seeds, steps, jobs))
    check_counts(slots=slots, seeds=seeds, steps=steps, jobs=jobs)
    if isinstance(policies, str) or not isinstance(policies, (Mapping, Sequence)):
        policies = [policies]
    named = policies if isinstance(policies, Mapping) else _named(policies)
    if not named:
        raise DeadlineError("There is no policy to compare: name one at least.")
    for policy in named.values():
        policy_choice.make(policy, {})
    seconds, relative = read_deadline(deadline)
    cluster = Cluster(slots=slots, speedup=speedup)
    setting = Case("", "", 0, cluster, seconds, relative, steps, data=data)
    given = [families] if isinstance(families, (str, Workload)) else list(families)
    own = {one.name: [one] for one in given if isinstance(one, Workload)}
    names = [one for one in given if not isinstance(one, Workload)]
    chosen: dict[str, Sequence[str | Workload]] = {**own}
    if names or not own:
        chosen = {**choose(names, data), **own}
    rows: list[PolicyRow] = []
    for family, workloads in chosen.items():
        cases = paired_cases(setting, [*named.values()], workloads, seeds)
        rows += summarise([*named], list(run_all(cases, jobs)), family)
    title = f"{', '.join(chosen)}: {slots=}, deadline={deadline}, {seeds=}"
    return Comparison(title, tuple(rows))


def _named(policies: Sequence[PolicyLike]) -> dict[str, PolicyLike]:
    """The policies by labels.

    Raises:
        DeadlineError: Two have one label.
    """
    found: dict[str, PolicyLike] = {}
    for policy in policies:
        label = policy if isinstance(policy, str) else _label(policy)
        if label in found:
            raise DeadlineError(
                f"Two policies are named {label!r}: name them, as in "
                "compare({'mine': ..., 'theirs': ...})."
            )
        found[label] = policy
    return found


def _label(policy: PolicyLike) -> str:
    """The name of a policy with the parameters that are not its defaults."""
    name, parameters = policy_choice.parse(policy)
    if not isinstance(name, str):
        return policy_choice.name_of(policy).removeprefix("object:")
    defaults = policy_choice.effective(name, {})
    own = [f"{key}={value}" for key, value in parameters.items() if value != defaults.get(key)]
    return ":".join(filter(None, [name, ",".join(own)]))
