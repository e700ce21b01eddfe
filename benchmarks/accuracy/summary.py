"""Means over tables, families and settings, and their standard errors."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from benchmarks.accuracy.runs import Case
from optuna_deadline.simulation.comparison import Estimate

Key = TypeVar("Key", str, int, float, tuple[Any, ...])


@dataclass(frozen=True)
class Run:
    """A case with its family and regret."""

    case: Case
    family: str
    regret: float


def mean_regret(runs: Sequence[Run]) -> dict[str, float]:
    """By policy, the mean over families of the means over tables."""
    found = {}
    for policy, mine in _by(runs, lambda run: run.case.policy).items():
        families = _by(mine, lambda run: run.family).values()
        found[policy] = statistics.fmean(_over_tables(family) for family in families)
    return found


def per(runs: Sequence[Run], key: Callable[[Run], Key]) -> dict[Key, dict[str, float]]:
    """:func:`mean_regret` for each value of a key."""
    parts = _by(runs, key)
    return {value: mean_regret(parts[value]) for value in sorted(parts)}


def differences(runs: Sequence[Run], reference: str) -> dict[str, dict[str, float | None]]:
    """By policy, its regret minus the reference's on the same studies.

    The standard error is that over the tables' means, since the studies of one table are not
    independent.
    """
    theirs = {_study(run): run.regret for run in runs if run.case.policy == reference}
    found = {}
    for policy, mine in _by(runs, lambda run: run.case.policy).items():
        by_table = _by(mine, lambda run: run.case.table).values()
        means = [statistics.fmean(r.regret - theirs[_study(r)] for r in some) for some in by_table]
        found[policy] = asdict(Estimate.of(means))
    return found


def differences_per(
    runs: Sequence[Run], reference: str, key: Callable[[Run], Key]
) -> dict[Key, dict[str, dict[str, float | None]]]:
    """:func:`differences` for each value of a key."""
    parts = _by(runs, key)
    return {value: differences(parts[value], reference) for value in sorted(parts)}


def losses(runs: Sequence[Run], reference: str) -> list[dict[str, Any]]:
    """The cells of family and deadline in which another policy has a lower mean regret.

    The best policy of a cell is chosen by the cell's own studies, so it leads by chance too: with
    many policies, a lead of two standard errors is no proof.
    """
    cells = differences_per(runs, reference, lambda run: (run.family, run.case.setting.trainings))
    found = []
    for (family, trainings), others in cells.items():
        difference, best = min((part["mean"] or 0.0, policy) for policy, part in others.items())
        if difference < 0:
            cell = {"family": family, "trainings": trainings, "best": best}
            found.append({**cell, **others[best]})
    return found


def ratios(runs: Sequence[Run], reference: str) -> dict[str, dict[str, float | None]]:
    """By policy, its :func:`mean_regret` divided by the reference's.

    The standard error is the jackknife's over tables; None if a family has only one table.
    """
    by_policy = _by(runs, lambda run: run.case.policy)
    theirs = by_policy[reference]
    bottom = mean_regret(theirs)[reference]
    tables = {(run.family, run.case.table) for run in theirs}
    families = [family for family, _ in tables]
    alone = any(families.count(family) == 1 for family in families)
    found = {}
    for policy, mine in by_policy.items():
        without = [] if alone else [_ratio(mine, theirs, table) for _, table in tables]
        count, middle = len(without), statistics.fmean(without) if without else 0.0
        spread = sum((one - middle) ** 2 for one in without)
        found[policy] = {
            "ratio": mean_regret(mine)[policy] / bottom if bottom else None,
            "error": (spread * (count - 1) / count) ** 0.5 if count and bottom else None,
        }
    return found


def _ratio(mine: Sequence[Run], theirs: Sequence[Run], without: str) -> float:
    top, bottom = (
        next(iter(mean_regret([run for run in some if run.case.table != without]).values()))
        for some in (mine, theirs)
    )
    return top / bottom if bottom else 1.0


def ranks(runs: Sequence[Run]) -> dict[str, dict[str, int]]:
    """By family, each policy's rank by its mean regret."""
    found = {}
    for family, regrets in per(runs, lambda run: run.family).items():
        places = sorted(regrets.values())
        found[family] = {policy: 1 + places.index(mean) for policy, mean in regrets.items()}
    return found


def left_out(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """By family, the policy that is best on the other families, and its regret.

    This is a test on unseen data: the policy is chosen without the family, and has this regret on
    it, where the best policy has ``best_regret``.
    """
    found = {}
    for family, here in per(runs, lambda run: run.family).items():
        others = [run for run in runs if run.family != family]
        if not others:
            continue
        means = mean_regret(others)
        chosen = min(means, key=means.__getitem__)
        best = min(here, key=here.__getitem__)
        found[family] = {
            "chosen": chosen,
            "regret": here[chosen],
            "best": best,
            "best_regret": here[best],
        }
    return found


def wins(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """The share of studies in which a row's policy beats a column's; a tie counts half."""
    studies = _by(runs, _study).values()
    policies = list(dict.fromkeys(run.case.policy for run in runs))
    won: dict[str, dict[str, float]] = {mine: dict.fromkeys(policies, 0.0) for mine in policies}
    for study in studies:
        regrets = {run.case.policy: run.regret for run in study}
        for mine in policies:
            for other in policies:
                gap = regrets[other] - regrets[mine]
                won[mine][other] += (1.0 if gap > 0 else 0.5 if gap == 0 else 0.0) / len(studies)
    return won


def _study(run: Run) -> tuple[Any, ...]:
    return run.case.table, run.case.seed, run.case.setting


def _over_tables(runs: Sequence[Run]) -> float:
    tables = _by(runs, lambda run: run.case.table).values()
    return statistics.fmean(statistics.fmean(run.regret for run in table) for table in tables)


def _by(runs: Iterable[Run], key: Callable[[Run], Key]) -> Mapping[Key, list[Run]]:
    found: dict[Key, list[Run]] = defaultdict(list)
    for run in runs:
        found[key(run)].append(run)
    return found
