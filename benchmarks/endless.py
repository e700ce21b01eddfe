"""``python -m benchmarks.endless [--data DIR]``: pruners that do not know how many trials come.

The rule of ``DeadlinePruner`` with and without the number of configurations, and asynchronous
halving that keeps a third of each rung and does not know the number either. On generated curves,
or on the recorded ones of ``--data``. A search that goes on after its table has no new
configuration trains old ones again, which no search of real numbers does: those studies have a row
of their own. With ``--ends`` each study ends after its configurations, as with ``n_trials`` of
``study.optimize``, whether its rule knows the number or not.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.runs import STEP_SECONDS, regret, scaled
from benchmarks.measuring import machine, output_file, with_error, write_json
from benchmarks.rivals import make_policy
from benchmarks.studies import simulate_all
from optuna_deadline.policies.api import Policy, Snapshot
from optuna_deadline.policies.measured_halving import TimeLeft
from optuna_deadline.policies.pruner import MeasuredHalving
from optuna_deadline.policies.trial_index import TrialIndex
from optuna_deadline.simulation import Cluster, Simulation
from optuna_deadline.simulation.comparison import Estimate
from optuna_deadline.simulation.tables import choose, draw
from optuna_deadline.simulation.workload import FAMILIES, Workload, generate

_STEPS, _SLOTS = 81, 8
_TRAININGS = (4, 8, 16, 32)
_REFERENCE = "endless"
#: By name: the policy, its parameters, and whether it knows the number of configurations.
RULES: dict[str, tuple[str, dict[str, int], bool]] = {
    _REFERENCE: ("pruner", {}, False),
    "number known": ("pruner", {}, True),
    "asha 3": ("asha", {"reduction_factor": 3}, False),
}


class NumberUnknown(MeasuredHalving):
    """The rule in a study that ends after some number of trials, which it does not know."""

    def _met_by_a_new_trial(
        self, snapshot: Snapshot, view: TrialIndex, stride: float, newcomers: int | None
    ) -> TimeLeft:
        return super()._met_by_a_new_trial(snapshot, view, stride, None)


@dataclass(frozen=True)
class Case:
    """One study of one rule."""

    rule: str
    table: str
    seed: int
    trainings: int  #: whole trainings that fit into the time of all slots
    configurations: int  #: of generated curves
    ends: bool
    data: Path | None

    def run(self) -> tuple[float, bool]:
        """The regret, and whether the search had more trials than there are configurations."""
        workload = self._workload()
        name, parameters, known = RULES[self.rule]
        number = len(workload.curves) if known or self.ends else None
        policy: Policy = (
            NumberUnknown(max_resource=workload.steps, n_trials=number)
            if self.ends and self.rule == _REFERENCE
            else make_policy(
                name, {"max_resource": workload.steps, "n_trials": number, **parameters}
            )
        )
        simulation = Simulation(
            policy,
            workload,
            Cluster(slots=_SLOTS, startup=STEP_SECONDS / 2 - 1, stop=1.0),
            deadline=self.trainings * workload.full_seconds / _SLOTS,
            seed=self.seed,
        )
        value = simulation.run().value
        ran_out = len(simulation.world.table.trials()) > len(workload.curves)
        return regret(workload, value), ran_out

    def _workload(self) -> Workload:
        if self.data is not None:
            return scaled(draw(self.table, self.seed, steps=_STEPS, data=self.data))
        drawn = generate(self.table, self.seed, configurations=self.configurations, steps=_STEPS)
        return scaled(drawn)


def rows(found: dict[Case, tuple[float, bool]]) -> Iterator[dict[str, Any]]:
    """By kind, and whether its configurations ran out: each rule's regret and its difference."""
    studies = {case: out for case, (_, out) in found.items() if case.rule == _REFERENCE}
    kinds = sorted({case.table.partition("/")[0] for case in studies})
    for kind, ran_out in product([*kinds, ""], (False, True)):
        mine = [
            case for case, out in studies.items()
            if out == ran_out and case.table.partition("/")[0] in (kind or kinds)
        ]  # fmt: skip
        if not mine:
            continue
        row: dict[str, Any] = {"kind": kind or "all", "ran out": ran_out, "studies": len(mine)}
        for rule in RULES:
            regrets = [found[replace(case, rule=rule)][0] for case in mine]
            paired = [value - found[case][0] for value, case in zip(regrets, mine, strict=True)]
            gap = Estimate.of(paired)
            mean = statistics.fmean(regrets)
            row[rule] = {"regret": mean, "difference": gap.mean, "error": gap.error}
        yield row


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate; print a table and write JSON."""
    parser = argparse.ArgumentParser(prog="benchmarks.endless", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of recorded curves")
    parser.add_argument("--configurations", type=int, default=1000, help="of generated curves")
    parser.add_argument("--ends", action="store_true", help="each study ends after them")
    parser.add_argument("--seeds", type=int, default=1, help="orders of each table")
    parser.add_argument("--trainings", type=int, action="append", help="again; 4, 8, 16, 32")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--json", type=output_file, help="file for the figures")
    given = parser.parse_args(arguments)
    tables = list(FAMILIES)
    if given.data is not None:
        tables = [table for some in choose([], given.data).values() for table in some]
    cases = [
        Case(rule, table, seed, trainings, given.configurations, given.ends, given.data)
        for table in tables
        for seed in range(1, 1 + given.seeds)
        for trainings in given.trainings or _TRAININGS
        for rule in RULES
    ]
    found = dict(zip(cases, simulate_all(cases, given.jobs), strict=True))
    result = list(rows(found))
    shown = Table("kind", "ran out", "studies", *RULES)
    for row in result:
        parts = [row[rule] for rule in RULES]
        shown.add_row(
            row["kind"], "yes" if row["ran out"] else "no", str(row["studies"]),
            f"{parts[0]['regret']:.3f}", *map(_cell, parts[1:]),
        )  # fmt: skip
    Console(width=140).print(shown)
    write_json(given.json, {"rows": result, "machine": machine()})


def _cell(part: dict[str, float | None]) -> str:
    difference = with_error(part["difference"] or 0.0, part["error"], "+.3f")
    return f"{part['regret']:.3f} ({difference})"


if __name__ == "__main__":
    main()
