"""``python -m benchmarks.live [--task T] [--quick] [--json F]``: the best value at the deadline.

Every contender tunes a task of the demo on the slots of this machine, one after the other, in a
random order for each seed. The result is the best value that any trial has reported by the
deadline, whether its checkpoint was saved or not.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
from optuna_deadline_demo import TASKS, Direction
from rich.table import Table

from benchmarks.live.contender import CONTENDERS, OVER, READY, missing
from benchmarks.live.pace import Paces, paces
from benchmarks.live.picture import draw
from benchmarks.live.reports import Report, improvements, read
from benchmarks.measuring import Progress, machine, output_file, screen, with_error, write_json
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.reader import read_history
from optuna_deadline.history.slot_usage import SlotUsage, slot_usage
from optuna_deadline.simulation.comparison import Estimate
from optuna_deadline.values.scores import score

_PATIENCE = 120.0  # seconds after the deadline at which running processes are killed
_REFERENCE = "elastic"
_OURS = (_REFERENCE, "plain")
_NOTHING = {"maximize": 0.0, "minimize": 8.0}  #: the value of a model that has learned nothing


@dataclass(frozen=True)
class Outcome:
    """The result of one contender at one deadline.

    Attributes:
        value: The best value reported by the deadline; None if there was none.
        overshoot: Seconds from the deadline to the return, or the kill, of its last call; negative
            if it returned before.
        gone: The same for the exit of its last process, which torch delays by 1 s to 2 s.
        trials: The trials that had reported by the deadline.
        epochs: The epochs of these trials.
        share: The time of these epochs alone on one slot each, as a share of the slots' time; 0
            where that is not known.
        improved: The best value so far, with the seconds at which each was reported.
        usage: Where the slots' time went, with workers.
    """

    contender: str
    seconds: float
    seed: int
    value: float | None
    overshoot: float
    gone: float
    trials: int
    epochs: int
    share: float = 0.0
    improved: Sequence[Sequence[float]] = ()
    usage: dict[str, float] | None = None

    def when(self, wanted: float, direction: str) -> float | None:
        """The seconds at which it had a value of at least this score; None if never."""
        return next((at for at, mine in self.improved if score(mine, direction) >= wanted), None)


def contend(name: str, task: str, seconds: float, seed: int, slots: int, alone: Paces) -> Outcome:
    """Run one contender until a deadline."""
    count = slots if CONTENDERS[name][1] else 1
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'study.db'}"
        processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "benchmarks.live.contender", name, task, url),
                    *(str(seed * slots + index), str(slots), folder),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for index in range(count)
        ]
        try:
            study = _start(processes, url, TASKS[task].direction)
            deadline = time.time() + seconds
            for process in processes:
                assert process.stdin is not None
                process.stdin.write(f"{deadline} {seconds}\n")
                process.stdin.flush()
            time.sleep(max(0.0, deadline - time.time()))
            overshoot = max(_returned(process, deadline) for process in processes)
            gone = time.time() - deadline
            usage = None
            if name == _REFERENCE:
                history = read_history(study)
                usage = asdict(slot_usage(history))
                widths = {one.number: one.params.get("width") for one in study.get_trials()}
                reports = [
                    Report(row.at, str(row.number), row.step, row.value, widths[row.number])
                    for row in history.reports
                ]
            else:
                reports = read(Path(folder))
        finally:
            for process in processes:
                process.kill()
    reports = [report for report in reports if report.at <= deadline]
    improved = improvements(reports, deadline - seconds, TASKS[task].direction)
    return Outcome(
        name,
        seconds,
        seed,
        improved[-1][1] if improved else None,
        overshoot,
        gone,
        len({report.trial for report in reports}),
        len(reports),
        sum(alone.get(report.width or 0, 0.0) for report in reports) / (slots * seconds),
        improved,
        usage,
    )


def _start(
    processes: Sequence[subprocess.Popen[str]], url: str, direction: Direction
) -> optuna.Study:
    """Wait until all processes are ready; return the study that they share."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(study_name="live", storage=url, direction=direction)
    for process in processes:
        assert process.stdout is not None
        if process.stdout.readline().strip() != READY:
            raise RuntimeError("A contender did not start; the demo's extra has to be installed.")
    return study


def _returned(process: subprocess.Popen[str], deadline: float) -> float:
    """Seconds after the deadline at which a contender's call returned, once it has ended."""
    output = ""
    with suppress(subprocess.TimeoutExpired):
        output, _ = process.communicate(timeout=max(0.1, deadline + _PATIENCE - time.time()))
    times = [line.split()[1] for line in output.splitlines() if line.startswith(f"{OVER} ")]
    return (float(times[-1]) if times else time.time()) - deadline


def figures(outcomes: Sequence[Outcome], direction: str = "maximize") -> list[dict[str, Any]]:
    """By deadline and contender: means, and the paired difference of values to ours."""
    rows, nothing = [], _NOTHING[direction]
    for seconds in sorted({one.seconds for one in outcomes}):
        mine = [one for one in outcomes if one.seconds == seconds]
        ours = {one.seed: _value(one, nothing) for one in mine if one.contender == _REFERENCE}
        for name in dict.fromkeys(one.contender for one in mine):
            those = [one for one in mine if one.contender == name]
            gaps = [_value(one, nothing) - ours[one.seed] for one in those if one.seed in ours]
            rows.append(
                {
                    "contender": name,
                    "seconds": seconds,
                    "value": asdict(Estimate.of([_value(one, nothing) for one in those])),
                    f"difference_to_{_REFERENCE}": asdict(Estimate.of(gaps)) if gaps else None,
                    "overshoot": max(one.overshoot for one in those),
                    "gone": max(one.gone for one in those),
                    "trials": Estimate.of([float(one.trials) for one in those]).mean,
                    "epochs": Estimate.of([float(one.epochs) for one in those]).mean,
                    "share": Estimate.of([one.share for one in those]).mean,
                    "seeds": len(those),
                    "usage": _mean_usage([one.usage for one in those if one.usage]),
                }
            )
    return rows


def _value(outcome: Outcome, nothing: float) -> float:
    return nothing if outcome.value is None else outcome.value


def lead(outcomes: Sequence[Outcome], seconds: float, direction: str) -> list[float | None]:
    """By seed, the share of the time after which ours had the best peer's final value.

    None where it never had.
    """
    mine, found = [one for one in outcomes if one.seconds == seconds], []
    for ours in (one for one in mine if one.contender == _REFERENCE):
        peers = [
            score(one.value, direction)
            for one in mine
            if one.seed == ours.seed and one.contender not in _OURS and one.value is not None
        ]
        if peers:
            at = ours.when(max(peers), direction)
            found.append(None if at is None else at / seconds)
    return found


def _mean_usage(found: Sequence[dict[str, float]]) -> dict[str, float] | None:
    return {key: fmean(one[key] for one in found) for key in found[0]} if found else None


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("deadline", "contender", "best value", f"to {_REFERENCE}", "returned", "gone",
                  "trials", "epochs", "training", "seeds")  # fmt: skip
    for column in table.columns[2:]:
        column.justify = "right"
    for row in rows:
        gap = row[f"difference_to_{_REFERENCE}"]
        table.add_row(
            f"{row['seconds']:g} s",
            row["contender"],
            with_error(row["value"]["mean"], row["value"]["error"], ".4f"),
            "" if gap is None else with_error(gap["mean"], gap["error"], "+.4f"),
            f"{row['overshoot']:+.1f} s",
            f"{row['gone']:+.1f} s",
            f"{row['trials']:.0f}",
            f"{row['epochs']:.0f}",
            f"{100 * row['share']:.0f} %" if row["share"] else "",
            str(row["seeds"]),
        )
    screen(piped=120).print(table)
    for row in rows:
        if row["usage"] is not None:
            print(f"{row['contender']}, {row['seconds']:g} s: {SlotUsage(**row['usage'])}")


def say_lead(outcomes: Sequence[Outcome], direction: str) -> None:
    """Print when ours had the best peer's final value."""
    for seconds in sorted({one.seconds for one in outcomes}):
        shares = lead(outcomes, seconds, direction)
        if reached := [share for share in shares if share is not None]:
            print(
                f"{_REFERENCE} had the best peer's final value at {fmean(reached):.2f} of "
                f"{seconds:g} s in the mean, with {len(reached)} of {len(shares)} seeds."
            )


def earlier(path: Path | None, task: str, slots: int) -> tuple[list[Outcome], Paces | None]:
    """The results in a file, and the seconds of an epoch when they were measured.

    Raises:
        DeadlineError: They were measured with another task or number of slots.
    """
    if path is None or not path.is_file():
        return [], None
    written = json.loads(path.read_text())
    if (written["task"], written["slots"]) != (task, slots):
        raise DeadlineError(
            f"{path} was measured with {written['task']} on {written['slots']} slots, not with "
            f"{task} on {slots}: name another file."
        )
    alone = {int(width): seconds for width, seconds in written["epoch_seconds"].items()}
    return [Outcome(**one) for one in written["outcomes"]], alone


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the file lacks; print and write the results."""
    parser = argparse.ArgumentParser(prog="benchmarks.live", description=__doc__)
    parser.add_argument("--task", choices=TASKS, default="digits")
    parser.add_argument("--deadline", type=float, action="append", help="in seconds; again")
    parser.add_argument("--seeds", type=int, help="10, or 2 with --quick")
    parser.add_argument("--slots", type=int, default=2, help="CPU slots")
    parser.add_argument("--contender", choices=CONTENDERS, action="append", help="again")
    parser.add_argument("--quick", action="store_true", help="30 s alone, two seeds")
    parser.add_argument(
        "--json", type=output_file, help="file for the figures; it is gone on with"
    )
    parser.add_argument("--picture", type=output_file, help="draw the best value against time")
    given = parser.parse_args(arguments)
    deadlines = given.deadline or ([30.0] if given.quick else [30.0, 60.0, 120.0])
    seeds = given.seeds or (2 if given.quick else 10)
    direction = TASKS[given.task].direction
    outcomes, alone = earlier(given.json, given.task, given.slots)
    contenders = []
    for name in given.contender or CONTENDERS:
        if (lacking := missing(name)) is None:
            contenders.append(name)
        else:
            print(f"{name} is left out, since there is no {lacking}.")
    progress = Progress()
    if alone is None:
        progress.write_progress("an epoch of each network alone on each slot")
        alone = paces(given.slots) if given.task == "digits" else {}
    done = {(one.seconds, one.seed, one.contender) for one in outcomes}
    for seconds, seed in product(deadlines, range(seeds)):
        names = list(contenders)
        random.Random(seed).shuffle(names)
        for name in names:
            if (seconds, seed, name) in done:
                continue
            progress.write_progress(f"{name}, {seconds:g} s, seed {seed + 1} of {seeds}")
            outcomes.append(contend(name, given.task, seconds, seed, given.slots, alone))
            written = {
                "rows": figures(outcomes, direction),
                "outcomes": [asdict(one) for one in outcomes],
                "task": given.task,
                "slots": given.slots,
                "epoch_seconds": alone,
                "machine": machine("optuna", "torch"),
            }
            write_json(given.json, written)  # an interrupted run keeps its results
    progress.end()
    show(figures(outcomes, direction))
    say_lead(outcomes, direction)
    if given.picture is not None:
        draw(outcomes, given.picture)


if __name__ == "__main__":
    main()
