"""The time in which a policy plans, by the number of trials and of GPUs."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measuring import Progress, Spread, machine, output_file, write_json
from optuna_deadline.forecasting.throughput import Overhead, Speedup
from optuna_deadline.policies import DEFAULT, Report, Snapshot, TrialView, known_policies
from optuna_deadline.policies.curve import ReportCurve
from optuna_deadline.study import policy_choice

STEPS = 81
STEP_SECONDS = 10.0
SPEEDUP = Speedup({2: 1.87, 4: 3.42, 8: 5.6})


def draw(trials: int, gpus: int, seed: int) -> Snapshot:
    """A study at half of its time: as many trials run as there are GPUs, the others are paused.

    The steps of the trials are distributed as under successive halving. The scores of each rise to
    its own limit with noise.
    """
    rng = random.Random(f"{trials} {gpus} {seed}")
    views = []
    for number in range(trials):
        steps = min(STEPS - 1, max(1, int(rng.paretovariate(0.8))))
        top = rng.random()
        reports = tuple(
            Report(step, top * (1 - 0.9**step) + rng.gauss(0, 0.005), step * STEP_SECONDS)
            for step in range(1, steps + 1)
        )
        running = number < gpus
        views.append(
            TrialView(
                number,
                "running" if running else "paused",
                slots=1 if running else 0,
                reports=ReportCurve(reports),
                changed=0.0,
                horizon=STEPS,
                step_seconds=STEP_SECONDS,
            )
        )
    half = 4 * STEPS * STEP_SECONDS
    return Snapshot(
        now=half, started=0.0, deadline=2 * half, capacity=gpus, largest_gang=min(8, gpus),
        trials=tuple(views), speedup=SPEEDUP, overhead=Overhead(startup=5.0, stop=1.0),
    )  # fmt: skip


@dataclass(frozen=True)
class Timed:
    """One policy in one situation."""

    policy: str
    trials: int
    gpus: int
    ms: Spread

    def row(self) -> dict[str, Any]:
        """For JSON."""
        figures = {"median": self.ms.median, "p10": self.ms.p10, "p90": self.ms.p90}
        return {"policy": self.policy, "trials": self.trials, "gpus": self.gpus, "ms": figures}


def measure(policy: str, trials: int, gpus: int, repetitions: int) -> Timed:
    """CPU milliseconds of plans, each by a new policy for a new snapshot."""
    times = []
    for seed in range(repetitions):
        snapshot = draw(trials, gpus, seed)
        chosen = policy_choice.make(policy, {"max_resource": STEPS})
        began = time.process_time()
        chosen.plan(snapshot)
        times.append(1e3 * (time.process_time() - began))
    return Timed(policy, trials, gpus, Spread.of(times))


def draw_picture(path: Path, rows: Sequence[Timed]) -> None:
    """Draw a line for each policy and pool against the number of trials."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    pools = sorted({row.gpus for row in rows})
    figure, axes = plt.subplots(1, len(pools), figsize=(5 * len(pools), 4), squeeze=False)
    for axis, gpus in zip(axes[0], pools, strict=True):
        for policy in dict.fromkeys(row.policy for row in rows):
            mine = [row for row in rows if row.policy == policy and row.gpus == gpus]
            axis.plot([r.trials for r in mine], [r.ms.median for r in mine], "o-", label=policy)
        axis.set(xscale="log", yscale="log", xlabel="trials", ylabel="ms", title=f"{gpus} GPUs")
    axes[0][0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.planner", description=__doc__)
    parser.add_argument(
        "--policy", action="append", help="a name or FILE.py:NAME, again for another; default all"
    )
    parser.add_argument("--trials", type=int, nargs="+", default=[30, 100, 300, 1000])
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--repetitions", type=int, default=5, help="snapshots of each size")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="where all figures go")
    parser.add_argument("--picture", type=output_file, metavar="FILE", help="SVG, PNG or PDF")
    given = parser.parse_args(arguments)
    policies = given.policy or [DEFAULT, *(p for p in known_policies() if p != DEFAULT)]
    progress, rows = Progress(), []
    try:
        for policy in policies:
            for gpus in given.gpus:
                for trials in given.trials:
                    progress.write_progress(f"{policy}, {trials} trials, {gpus} GPUs")
                    rows.append(measure(policy, trials, gpus, given.repetitions))
    finally:
        progress.end()
    print(f"{'CPU ms of a plan':24}{'GPUs':>6}" + "".join(f"{n:>10}" for n in given.trials))
    for policy in policies:
        for gpus in given.gpus:
            mine = [row for row in rows if (row.policy, row.gpus) == (policy, gpus)]
            print(f"{policy:24}{gpus:6}" + "".join(f"{row.ms.median:10.2f}" for row in mine))
    if given.picture is not None:
        draw_picture(given.picture, rows)
    write_json(given.json, {"rows": [row.row() for row in rows], "machine": machine()})


if __name__ == "__main__":
    main()
