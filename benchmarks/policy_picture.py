"""``python -m benchmarks.policy_picture``: one simulated study, each trial's steps against time.

A line is a stretch of a trial's training; its width is the number of slots. Trials that end
COMPLETE are orange.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.headlines.pictures import picture
from optuna_deadline.policies import DEFAULT, make_policy
from optuna_deadline.simulation import Cluster, Simulation, generate

SLOTS, STEPS, STEP_SECONDS = 8, 81, 10.0


def draw(path: Path, policy: str, family: str, trainings: float, seed: int) -> None:
    """Simulate a study and draw it."""
    workload = generate(family, seed, configurations=400, steps=STEPS, step_seconds=STEP_SECONDS)
    deadline = trainings * workload.full_seconds / SLOTS
    cluster = Cluster(slots=SLOTS, startup=STEP_SECONDS / 4, stop=STEP_SECONDS / 4)
    study = Simulation(
        make_policy(policy, {"max_resource": STEPS}),
        workload,
        cluster,
        deadline=deadline,
        seed=seed,
    )
    study.run()
    table = study.world.table
    complete = {trial.number for trial in table.trials() if trial.state == "complete"}
    with picture(path, size=(8, 4)) as (axes,):
        for segment in table.segments():
            if segment.stepped and segment.ended is not None:
                begin = segment.granted + (segment.startup or 0.0)
                axes.plot(
                    [begin, segment.ended - (segment.stop or 0.0)],
                    [max(0.5, segment.position_from or 0.0), segment.position_to],
                    color="tab:orange" if segment.number in complete else "tab:blue",
                    linewidth=0.5 + 0.5 * segment.slots,
                )
        axes.axvline(deadline, color="black", linewidth=0.8, linestyle="--")
        ticks = [1, 2, 4, 8, 16, 32, 64, 81]
        axes.set(yscale="log", xlabel="seconds; the dashed line is the deadline", ylabel="steps")
        axes.set_yticks(ticks, [str(step) for step in ticks])


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and draw."""
    parser = argparse.ArgumentParser(prog="benchmarks.policy_picture", description=__doc__)
    parser.add_argument("--policy", default=DEFAULT)
    parser.add_argument("--family", default="power-law")
    parser.add_argument(
        "--trainings", type=float, default=16.0, help="full trainings until the deadline"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/images/adaptive_halving.png"))
    given = parser.parse_args(arguments)
    draw(given.out, given.policy, given.family, given.trainings, given.seed)


if __name__ == "__main__":
    main()
