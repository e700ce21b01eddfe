"""Regret against the deadline, and who beats whom."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.accuracy.runs import ORACLE
from benchmarks.accuracy.summary import Run
from benchmarks.headlines.pictures import picture
from optuna_deadline.simulation.comparison import Estimate

#: Of Okabe and Ito, for eyes that see few colours; the rest is grey, by its dashes and marks.
_DASHES = ("--o", "--s", "--^", ":v", ":x", ":+")
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def against_deadline(runs: Sequence[Run], path: Path) -> None:
    """A panel for each family: the mean regret of each policy, with standard errors of some."""
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


def win_matrix(wins: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """The share of studies in which the row's policy is better than the column's."""
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
