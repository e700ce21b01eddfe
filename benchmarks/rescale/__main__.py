"""``python -m benchmarks.rescale [--quick] [--json F]``: seconds from last step to next step.

One run measures all methods, on the CPU, with gloo for two ranks.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measuring import Progress, machine, output_file, write_json
from benchmarks.rescale import others, ours
from benchmarks.rescale.ours import Switch

TARGET_S, TARGET_TIMES = 0.5, 10.0
_OURS = "a segment of ours"
_WAYS = {
    "relaunching processes": others.relaunch,
    "torchrun": others.torchrun,
    "ddp_spawn": others.spawn,
}


def row(way: str, change: str, switches: Sequence[Switch]) -> dict[str, Any]:
    """The figures of one method and change, in seconds."""
    seconds = sorted(switch.seconds for switch in switches)
    return {
        "way": way,
        "change": change,
        "count": len(seconds),
        "median_s": round(statistics.median(seconds), 3),
        "least_s": round(seconds[0], 3),
        "most_s": round(seconds[-1], 3),
        "parts_s": {
            part: round(statistics.median(switch.parts[part] for switch in switches), 3)
            for part in switches[0].parts
        },
    }


def rows_of(way: str, switches: Iterable[Switch]) -> list[dict[str, Any]]:
    """One row for each kind of change."""
    by_change: dict[str, list[Switch]] = {}
    for switch in switches:
        by_change.setdefault(switch.change, []).append(switch)
    return [row(way, change, some) for change, some in sorted(by_change.items())]


def measure(*, quick: bool) -> dict[str, Any]:
    """All rows, and the two medians over changes of slots that have targets."""
    progress = Progress()
    seconds, changes = (30.0, 2) if quick else (90.0, 8)
    mine: list[Switch] = []
    for policy, slots, epochs, keep_warm, changes_of_interest in (
        (ours.resizing, 2, 10_000, 0, {"1 -> 2", "2 -> 1"}),
        (ours.turns, 1, 10_000, 0, {"resume"}),
        (ours.turns, 1, 10_000, 2, {"wake"}),
        (ours.beginning, 1, 1, 0, {"start"}),
    ):
        progress.write_progress(f"{_OURS}: {policy.__name__}{', warm' if keep_warm else ''}")
        found = ours.measure(
            policy, slots=slots, seconds=seconds, epochs=epochs, keep_warm=keep_warm
        )
        mine += [switch for switch in found if switch.change in changes_of_interest]
    rows = rows_of(_OURS, mine)
    theirs: list[float] = []
    for way, launch in _WAYS.items():
        progress.write_progress(way)
        found = [Switch(change, s, {}) for change, s in others.measure(launch, changes)]
        rows += rows_of(way, found)
        if launch is others.relaunch:
            theirs = [switch.seconds for switch in found]
    progress.end()
    # An woken process never left, so it does not count where segments are compared.
    segment = statistics.median(s.seconds for s in mine if s.change not in ("start", "wake"))
    again = statistics.median(theirs)
    return {
        "segment_switch_median_s": round(segment, 3),
        "relaunch_median_s": round(again, 3),
        "times_faster": round(again / segment, 1),
        "first_step_median_s": next(r["median_s"] for r in rows if r["change"] == "start"),
        "wake_median_s": next(r["median_s"] for r in rows if r["change"] == "wake"),
        "targets": {"segment_switch_median_s": TARGET_S, "times_faster": TARGET_TIMES},
        "rows": rows,
        "machine": machine("torch", "lightning"),
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print all rows, and the parts of ours."""
    console = Console()
    whole = Table("way", "change", title="Seconds from the last step to the next")
    for name in ("count", "median_s", "least_s", "most_s"):
        whole.add_column(name.removesuffix("_s"), justify="right")
    for line in rows:
        figures = [str(line[key]) for key in ("count", "median_s", "least_s", "most_s")]
        whole.add_row(line["way"], line["change"], *figures)
    console.print(whole)
    ours_in_parts = Table("part", title=f"The parts of {_OURS}, medians")
    parts = [line for line in rows if line["parts_s"]]
    for line in parts:
        ours_in_parts.add_column(line["change"], justify="right")
    for name in dict.fromkeys(name for line in parts for name in line["parts_s"]):
        ours_in_parts.add_row(name, *(str(line["parts_s"].get(name, "-")) for line in parts))
    console.print(ours_in_parts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure; print a table and write JSON."""
    parser = argparse.ArgumentParser(prog="benchmarks.rescale", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="30 s of each of ours, 2 changes of the others"
    )
    parser.add_argument("--json", type=output_file, help="file for the figures")
    given = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    os.environ["PYTHONWARNINGS"] = "ignore"
    for name in ("lightning", "lightning.pytorch", "lightning.fabric", "optuna_deadline"):
        logging.getLogger(name).setLevel(logging.ERROR)
    result = measure(quick=given.quick)
    show(result["rows"])
    print(
        f"A switch of ours takes {result['segment_switch_median_s']} s in the median"
        f" (target {TARGET_S}), {result['times_faster']} times faster than relaunching"
        f" (target {TARGET_TIMES:.0f}); where trials are warm it takes"
        f" {result['wake_median_s']} s; a new trial's first step ends"
        f" {result['first_step_median_s']} s after its grant."
    )
    write_json(given.json, result)


if __name__ == "__main__":
    main()
