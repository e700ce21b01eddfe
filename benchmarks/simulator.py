"""Simulated reports per second of CPU time, in several pools and under any policy."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

from benchmarks.measuring import Progress, machine, output_file, write_json
from optuna_deadline._garbage import collect_seldom
from optuna_deadline.policies import make_policy
from optuna_deadline.simulation import Cluster, generate, simulate
from optuna_deadline.simulation.comparison import run_all

TARGET = 50_000.0


@dataclass(frozen=True)
class Setting:
    """A pool, and the interval between reports."""

    slots: int
    step_seconds: float
    deadline: float  #: in whole trainings on one slot
    steps: int = 81  #: of a whole training
    startup: float = 5.0
    stop: float = 1.0

    def __str__(self) -> str:
        return f"{self.slots} slots, {self.steps} steps of {self.step_seconds:g} s"


SETTINGS = (
    Setting(8, 10.0, 4.0),
    Setting(64, 1.0, 8.0),
    Setting(64, 0.05, 40.0, startup=0.5, stop=0.1),
    Setting(64, 0.01, 4.0, steps=2000, startup=0.5, stop=0.1),
)


@dataclass(frozen=True)
class Speed:
    """The time of one simulated study."""

    reports: int
    wall: float
    cpu: float


@dataclass(frozen=True)
class Study:
    """One study to measure."""

    policy: str
    setting: Setting
    seed: int

    def run(self) -> Speed:
        """Simulate it."""
        setting = self.setting
        workload = generate(
            "power-law", self.seed, steps=setting.steps, step_seconds=setting.step_seconds
        )
        cluster = Cluster(slots=setting.slots, startup=setting.startup, stop=setting.stop)
        chosen = make_policy(self.policy, {"max_resource": workload.steps})
        deadline = setting.deadline * workload.full_seconds
        wall, cpu = time.perf_counter(), time.process_time()
        outcome = simulate(chosen, workload, cluster, deadline=deadline)
        return Speed(outcome.reports, time.perf_counter() - wall, time.process_time() - cpu)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.simulator", description=__doc__)
    parser.add_argument("--policy", default="hypersched", help="policy")
    parser.add_argument("--jobs", type=int, default=2, help="processes, a study each")
    parser.add_argument("--quick", action="store_true", help="the smallest pool alone")
    parser.add_argument(
        "--json", type=output_file, metavar="FILE", help="where to write all figures"
    )
    given = parser.parse_args(arguments)
    settings = SETTINGS[:1] if given.quick else SETTINGS
    progress, rows = Progress(), []
    collect_seldom()
    try:
        for setting in settings:
            progress.write_progress(str(setting))
            studies = [Study(given.policy, setting, seed) for seed in range(given.jobs)]
            found = list(run_all(studies, given.jobs))
            reports = sum(one.reports for one in found)
            rows.append(
                {
                    "setting": str(setting),
                    "reports": reports,
                    "per_second": reports / max(one.wall for one in found),
                    "per_cpu_second": reports / sum(one.cpu for one in found),
                }
            )
    finally:
        progress.end()
    print(f"{'reports/s, ' + given.policy:34}{f'{given.jobs} processes':>14}{'a CPU second':>14}")
    for row in rows:
        print(f"{row['setting']:34}{row['per_second']:14,.0f}{row['per_cpu_second']:14,.0f}")
    print(f"target: {TARGET:,.0f} with 2 processes on 2 idle cores")
    write_json(given.json, {"rows": rows, "target": TARGET, "machine": machine()})


if __name__ == "__main__":
    main()
