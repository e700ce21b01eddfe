"""Results of earlier runs, so that a long run can be interrupted and continued.

A study and a policy identify a row. Digests check that a row belongs to the same curves. Nothing
checks that the code is unchanged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.runs import Case, Setting
from benchmarks.accuracy.summary import Run
from optuna_deadline.errors import DeadlineError
from optuna_deadline.simulation.tables import draw

Study = tuple[str, int, Setting]  #: table, seed and setting


@dataclass(frozen=True)
class Kept:
    """The results of earlier runs.

    Attributes:
        regrets: The regrets by policy and study.
    """

    regrets: Mapping[str, Mapping[Study, float]]

    def of(self, case: Case) -> float | None:
        """The regret of a study; None if it was not run."""
        return self.regrets.get(case.policy, {}).get((case.table, case.seed, case.setting))

    def missing(self, policy: str, studies: Collection[Study]) -> int:
        """The number of studies that a policy has not run."""
        return len(set(studies) - self.regrets.get(policy, {}).keys())


def digests(tables: Iterable[str], data: Path | None) -> dict[str, str]:
    """A digest of a table's curves and paces."""
    found = {}
    for table in tables:
        workload = draw(table, 0, steps=81, data=data)
        mine = hashlib.sha256(np.array(workload.curves, dtype=float).tobytes())
        mine.update(np.array([workload.every, *workload.step_seconds]).tobytes())
        mine.update(np.array(workload.report_seconds, dtype=float).tobytes())
        found[table] = mine.hexdigest()[:16]
    return found


def take(files: Sequence[Path], tables: Mapping[str, str]) -> Kept:
    """Read the rows of some tables.

    Args:
        files: Files that the command wrote.
        tables: The present digests of the tables.

    Raises:
        DeadlineError: A file has other curves, or two files disagree on a study.
    """
    regrets: dict[str, dict[Study, float]] = {}
    for path in files:
        written = json.loads(path.read_text())
        for row in written["rows"]:
            table = row["table"]
            if table not in tables:
                continue
            if written.get("tables", {}).get(table) != tables[table]:
                raise DeadlineError(
                    f"The rows of {table} in {path} are of other curves than those here; run them "
                    "again, or name the folder of data that they are of."
                )
            setting = Setting(row["slots"], row["trainings"], row["overhead"])
            mine = regrets.setdefault(row["policy"], {})
            if mine.setdefault((table, row["seed"], setting), row["regret"]) != row["regret"]:
                raise DeadlineError(
                    f"{path} has another regret for {row['policy']} on {table} than a file before "
                    "it: one of them is of older code; leave it out."
                )
    return Kept(regrets)


def rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """All studies, as JSON."""
    return [
        {
            "policy": run.case.policy,
            "family": run.family,
            "table": run.case.table,
            "seed": run.case.seed,
            "slots": run.case.setting.slots,
            "trainings": run.case.setting.trainings,
            "overhead": run.case.setting.overhead,
            "regret": run.regret,
        }
        for run in runs
    ]
