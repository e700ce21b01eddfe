"""Plan time, statements and memory of pools of a tenth, a third and all of ten thousand slots."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.measuring import Progress, machine, output_file, write_json
from benchmarks.scale.database import Database
from benchmarks.scale.demand import demand, rates
from benchmarks.scale.planning import DIVIDERS, time_leader, time_planners, time_policy
from benchmarks.scale.situation import Size, build
from benchmarks.support.postgres import EmbeddedPostgres

SIZES = (Size(100, studies=20), Size(333, studies=67), Size(1000, studies=200))
POLICIES = ("adaptive_halving", "hypersched", "hermes", "shockwave")
ALONE = ((200, 100), (2_000, 1_000), (20_000, 10_000))  # trials and slots of a study alone


def measure(
    sizes: Sequence[Size], studies: int, seconds: float, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """A row for each size.

    Args:
        sizes: The sizes of the pools.
        studies: The number of studies whose planner is timed.
        seconds: The seconds for which each operation on the database is repeated.
        say: Called with a description of the present measurement.
    """
    rows = []
    with EmbeddedPostgres(durable=True) as server:
        for size in sizes:
            found = build(size)
            say(f"{size}: the database")
            database = Database(server, found, POLICIES[0])
            costs = database.costs(seconds)
            memory = database.planner_memory()
            database.drop()
            say(f"{size}: planners and dividers")
            wanted = demand(size, costs)
            rows.append(
                {
                    "size": asdict(size),
                    "slots": size.capacity,
                    "workers": size.workers,
                    "trials": size.trials,
                    "costs": {name: asdict(cost) for name, cost in costs.items()},
                    "rates": rates(size),
                    "demand": asdict(wanted),
                    "planner_mb": memory,
                    "planners": [time_planners(found, name, studies) for name in POLICIES],
                    "leaders": [time_leader(found, name) for name in DIVIDERS],
                }
            )
    return rows


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """A column for each size."""

    def line(name: str, figures: Sequence[float], form: str = ",.2f") -> None:
        print(f"{name:44}" + "".join(f"{figure:>12{form}}" for figure in figures))

    line("slots", [row["slots"] for row in rows], ",")
    line("hosts", [row["size"]["hosts"] for row in rows], ",")
    line("studies", [row["size"]["studies"] for row in rows], ",")
    line("workers", [row["workers"] for row in rows], ",")
    line("live trials", [row["trials"] for row in rows], ",")
    print("In memory, CPU ms:")
    for nth, policy in enumerate(POLICIES):
        for key, what in (
            ("first_ms", "first plan"),
            ("news_ms", "plan with news"),
            ("of_that_policy_ms", "of that the policy"),
            ("idle_ms", "look without news"),
        ):
            line(f"  {policy}, {what}", [row["planners"][nth][key] for row in rows])
    for nth, divider in enumerate(DIVIDERS):
        for key, what in (("divide_ms", "shares"), ("deal_ms", "slots"), ("tick_ms", "all of it")):
            line(f"  {divider}, {what}", [row["leaders"][nth][key] for row in rows])
    print("On PostgreSQL, CPU ms of the client and of the server, and statements:")
    for name in rows[0]["costs"]:
        costs = [row["costs"][name] for row in rows]
        line(f"  {name}: client", [cost["client_ms"] for cost in costs])
        line(f"  {name}: server", [cost["server_ms"] for cost in costs])
        line(f"  {name}: statements", [cost["statements"] for cost in costs], ".1f")
    print("A second of the whole pool:")
    line("  statements", [row["demand"]["statements"] for row in rows], ",.0f")
    for name in rows[0]["demand"]["parts"]:
        line(f"    {name}", [row["demand"]["parts"][name] for row in rows], ",.0f")
    line("  cores of the server", [row["demand"]["server_cores"] for row in rows])
    print("MB of a process:")
    for key in rows[0]["planner_mb"]:
        line(f"  {key}", [row["planner_mb"][key] for row in rows], ".1f")


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the two smaller sizes, shortly")
    parser.add_argument("--hosts", type=int, help="one pool of so many hosts in place of them")
    parser.add_argument("--served", type=int, default=4, help="studies with a worker on each host")
    parser.add_argument("--seconds", type=float, help="for each operation on the database")
    parser.add_argument("--alone", action="store_true", help="also one study that has all slots")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="where all figures go")
    given = parser.parse_args(arguments)
    sizes: Sequence[Size] = SIZES[:2] if given.quick else SIZES
    if given.hosts is not None:
        sizes = (Size(given.hosts, studies=max(1, given.hosts // 5)),)
    sizes = [Size(s.hosts, s.slots, s.studies, given.served) for s in sizes]
    seconds = given.seconds or (0.5 if given.quick else 3.0)
    progress = Progress()
    try:
        rows = measure(sizes, 3 if given.quick else 20, seconds, progress.write_progress)
        alone = []
        for policy in POLICIES if given.alone else ():
            for trials, slots in ALONE:
                progress.write_progress(f"{policy} alone, {trials} trials")
                ms = time_policy(policy, trials, slots)
                alone.append({"policy": policy, "trials": trials, "slots": slots, "ms": ms})
    finally:
        progress.end()
    show(rows)
    for row in alone:
        print(
            f"{row['policy']} alone, {row['trials']:,} trials: {row['ms']:,.0f} ms of CPU a plan"
        )
    write_json(given.json, {"rows": rows, "alone": alone, "machine": machine()})


if __name__ == "__main__":
    main()
