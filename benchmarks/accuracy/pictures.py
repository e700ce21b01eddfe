"""Pictures of regret against the deadline, and of pairwise wins."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.accuracy.runs import ORACLE
from benchmarks.accuracy.summary import Run
from benchmarks.headlines.pictures import picture
from optuna_deadline.simulation.comparison import Estimate

#: Okabe and Ito's colours, which are distinct for any colour vision; other policies are grey.
_DASHES = ("--o", "--s", "--^", ":v", ":x", ":+")
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
#: The implementation of a policy by the start of its name.
_WHOSE = {
    "optuna_": ("Optuna's own", "#E69F00"),
    "syne_": ("Syne Tune's own", "#009E73"),
    "": ("written here", "#0072B2"),
}


def against_deadline(runs: Sequence[Run], path: Path) -> None:
    """Draw a panel for each family: the mean regret of each policy, some with standard errors."""
    families = list(dict.fromkeys(run.family for run in runs))
    policies = list(dict.fromkeys(run.case.policy for run in runs))
    with picture(path, len(families), (4.2, 3.6)) as panels:
        for axes, family in zip(panels, families, strict=True):
            for number, policy in enumerate(policies):
                by_deadline: dict[int, list[float]] = defaultdict(list)
                for run in runs:
                    if (run.family, run.case.policy) == (family, policy):
                        by_deadline[run.case.setting.trainings].append(run.regret)
                x = sorted(by_deadline)
                found = [Estimate.of(by_deadline[one]) for one in x]
                y = [one.mean for one in found]
                if policy == ORACLE:
                    axes.plot(x, y, color="black", linewidth=1, label=policy)
                elif number >= len(_COLOURS):
                    axes.plot(x, y, _DASHES[number % len(_DASHES)], color="#777777", label=policy)
                else:
                    colour = _COLOURS[number]
                    axes.plot(x, y, color=colour, label=policy, linewidth=2)
                    low = [one.mean - (one.error or 0.0) for one in found]
                    high = [one.mean + (one.error or 0.0) for one in found]
                    axes.fill_between(x, low, high, color=colour, alpha=0.1)
            axes.set_xscale("log", base=2)
            axes.set_xticks(x, [str(one) for one in x])
            axes.set_title(family)
            axes.set_xlabel("whole trainings that the pool has time for")
            axes.set_ylim(bottom=0)
        panels[0].set_ylabel("regret (0 best, 1 median configuration)")
        panels[-1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def ranking(result: Mapping[str, Any], reference: str, path: Path) -> None:
    """Draw a bar for each policy, the best first, coloured by implementation; marks are families.

    The line through the end of a bar is the standard error of its difference to the reference.
    """
    means = {policy: mean for policy, mean in result["mean_regret"].items() if policy != ORACLE}
    order = sorted(means, key=means.__getitem__, reverse=True)
    with picture(path, 1, (9.0, 1.1 + 0.25 * len(order))) as (axes,):
        for label, colour in _WHOSE.values():
            axes.barh(0, 0, color=colour, label=label)
        for place, policy in enumerate(order):
            _, colour = next(whose for start, whose in _WHOSE.items() if policy.startswith(start))
            alpha = 0.5 if "+" in policy else 0.9
            axes.barh(place, means[policy], color=colour, alpha=alpha)
            error = result[f"difference_to_{reference}"][policy]["error"]
            if error:
                axes.errorbar(means[policy], place, xerr=error, color="#333333", capsize=2)
            axes.text(0.004, place, f"{means[policy]:.3f}", va="center", fontsize=7, color="white")
        for mark, (family, regrets) in zip("osD^v<>", result["per_family"].items(), strict=False):
            x, look = [regrets[policy] for policy in order], {"color": "none", "markersize": 4}
            look |= {"markeredgecolor": "#333333", "label": f"{family} alone"}
            axes.plot(x, range(len(order)), mark, **look)
        axes.set_yticks(range(len(order)), order, fontsize=8)
        axes.set_xlim(left=0)
        axes.set_xlabel("regret at the deadline (0 best, 1 median configuration); less is better")
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def win_matrix(wins: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Draw the share of studies in which the row's policy is better than the column's."""
    order = sorted(wins, key=lambda policy: -statistics.fmean(wins[policy].values()))
    with picture(path, 1, (6.4, 5.6)) as (axes,):
        shares = [[wins[row][column] for column in order] for row in order]
        axes.imshow(shares, vmin=0, vmax=1, cmap="PuOr")
        for i, row in enumerate(shares):
            for j, share in enumerate(row):
                if i != j:
                    axes.text(j, i, f"{100 * share:.0f}", ha="center", va="center", fontsize=8)
        axes.set_xticks(range(len(order)), order, rotation=45, ha="right")
        axes.set_yticks(range(len(order)), order)
        axes.set_title("how often the row is better than the column, %")
