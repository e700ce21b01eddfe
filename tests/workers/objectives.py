"""Objectives for real workers: loops that need neither torch nor Lightning."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna_deadline

LAST = 40


def elastic(trial: Any, seconds: float = 0.08, last: int = LAST, hold: int | None = None) -> float:
    """Saves each step, leaves when told, resumes; two slots are twice as fast.

    At the step ``hold`` it waits until it is told to leave.
    """
    x = trial.suggest_float("x", 0.0, 1.0)
    segment = optuna_deadline.segment(trial)
    segment.horizon(last)
    first = json.loads(segment.resume.read_text())["step"] + 1 if segment.resume else 0
    value = 0.0
    for step in range(first, last + 1):
        time.sleep(seconds / segment.world_size)
        value = x * (1 - math.exp(-(step + 1) / 8))
        trial.report(value, step)
        segment.save(_writer(trial.number, step), step=step, value=value)
        directive = segment.directive()
        while step == hold and not directive.leave:
            time.sleep(0.02)
            directive = segment.directive()
        if directive.leave:
            segment.leave(directive)
    return value


def noted_for_long(trial: Any) -> float:
    """The same as :func:`noted`, too long to finish by itself."""
    return noted(trial, last=100_000)


def noted(trial: Any, last: int = LAST) -> float:
    """Elastic, and writes down every step that is made, once however many ranks make it."""
    report, first = trial.report, optuna_deadline.segment(trial).rank == 0

    def write_and_report(value: float, step: int) -> None:
        if first:
            with (Path(os.environ["RANK_LOG"])).open("a") as file:
                file.write(f"{trial.number} {step}\n")
        report(value, step)

    trial.report = write_and_report
    return elastic(trial, seconds=0.2, last=last)


def falling(trial: Any) -> float:
    """Its first model is its best."""
    segment = optuna_deadline.segment(trial)
    first = json.loads(segment.resume.read_text())["step"] + 1 if segment.resume else 0
    value = 1.0
    for step in range(first, LAST + 1):
        time.sleep(0.1)
        value = 1.0 - step / LAST
        trial.report(value, step)
        segment.save(_writer(trial.number, step), step=step, value=value)
        directive = segment.directive()
        if directive.leave:
            segment.leave(directive)
    return value


def _writer(number: int, step: int) -> Any:
    text = json.dumps({"number": number, "step": step})
    return lambda path: path.write_text(text)


#: The last steps of the first two segments of ``moved_twice``, which waits there to be moved.
MOVES = (12, 28)


def moved_twice(trial: Any) -> float:
    """Elastic, and each rank writes down who it is and what it got."""
    _write_down(trial)
    fence = optuna_deadline.segment(trial).fence
    return elastic(trial, hold=MOVES[fence - 1] if fence <= len(MOVES) else None)


def logged_for_long(trial: Any) -> float:
    """Each rank writes down who it is and what it got, and none finishes by itself."""
    _write_down(trial)
    return elastic(trial, last=100_000)


def _write_down(trial: Any) -> None:
    """Who this rank is and what it got; no rank trains before all have come.

    Collectives would see to that. A first rank that runs on alone replaces the checkpoint that the
    others were told to begin with, before they have looked.
    """
    segment = optuna_deadline.segment(trial)
    x = trial.suggest_float("x", 0.0, 1.0)
    kind = trial.suggest_categorical("kind", ["a", "b"])
    facts = {
        "number": trial.number,
        "fence": segment.fence,
        "rank": segment.rank,
        "world": segment.world_size,
        "params": {"x": x, "kind": kind},
        "seen": trial.params,
        "threads": threading.active_count(),
        "pid": os.getpid(),
        "parent": os.getppid(),
    }
    with (Path(os.environ["RANK_LOG"])).open("a") as file:
        file.write(json.dumps(facts) + "\n")
    log, end = Path(os.environ["RANK_LOG"]), time.monotonic() + 60
    while time.monotonic() < end:
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        if sum(facts["fence"] == segment.fence for facts in lines) >= segment.world_size:
            break
        time.sleep(0.05)


def slow(trial: Any) -> float:
    """Too long to finish by itself; each rank writes down its process id."""
    with (Path(os.environ["RANK_LOG"])).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return elastic(trial, seconds=0.1, last=100_000)


def lingering(trial: Any) -> float:
    """Leaves once the file that the environment names is there."""
    segment = optuna_deadline.segment(trial)
    first = json.loads(segment.resume.read_text())["step"] + 1 if segment.resume else 0
    for step in range(first, 100_000):
        time.sleep(0.1)
        trial.report(step, step)
        segment.save(_writer(trial.number, step), step=step, value=step)
        directive = segment.directive()
        if directive.leave:
            while not Path(os.environ["MAY_LEAVE"]).exists():
                time.sleep(0.05)
            segment.leave(directive)
    return 0.0


def stuck(trial: Any) -> float:
    """Never gets to its first step."""
    with (Path(os.environ["RANK_LOG"])).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return silent(trial)


def brief(trial: Any) -> float:
    """Done within about a second."""
    return elastic(trial, seconds=0.15, last=6)


def lasting(trial: Any) -> float:
    """A step takes as long as the parameter says."""
    return elastic(trial, seconds=0.02 + 0.2 * trial.suggest_float("x", 0.0, 1.0))


def longer(trial: Any) -> float:
    """Ends after half a minute on one slot."""
    return elastic(trial, last=400)


def plain(trial: Any) -> float:
    """A loop that knows nothing of segments: Optuna's own two questions and one of ours."""
    x = trial.suggest_float("x", 0.0, 1.0)
    value = 0.0
    for step in range(1000):
        time.sleep(0.05)
        value = x * (1 - math.exp(-step / 8))
        trial.report(value, step)
        if optuna_deadline.out_of_time(trial):
            break
        if trial.should_prune():
            import optuna

            raise optuna.TrialPruned()
    return value


def raises(trial: Any) -> float:
    """Every second trial is broken."""
    if trial.number % 2:
        raise RuntimeError("this configuration does not fit into memory")
    return elastic(trial)


def broken(trial: Any) -> float:
    """No trial gets anywhere."""
    raise ImportError("no module named 'torhc'")


def silent(trial: Any) -> float:
    """Never reports and never listens."""
    trial.suggest_float("x", 0.0, 1.0)
    time.sleep(3600)
    return 0.0


def diverges(trial: Any) -> float:
    """Every second trial reports NaN and goes on."""
    if trial.number % 2 == 0:
        return elastic(trial)
    for step in range(100):
        time.sleep(0.05)
        trial.report(math.nan, step)
        if trial.should_prune() or optuna_deadline.out_of_time(trial):
            break
    return math.nan


class WithData:
    """A callable object that carries its data."""

    def __init__(self, data: list[float]) -> None:
        self.data = data

    def __call__(self, trial: Any) -> float:
        """Elastic, once it has seen its data."""
        assert sum(self.data) == 6.0
        return elastic(trial)


def using(trial: Any) -> float:
    """Too long to finish by itself; each rank writes down when it uses its device."""
    segment = optuna_deadline.segment(trial)
    x = trial.suggest_float("x", 0.0, 1.0)
    device = os.environ["OPTUNA_DEADLINE_DEVICES"].split(",")[segment.rank]
    first = json.loads(segment.resume.read_text())["step"] + 1 if segment.resume else 0
    with (Path(os.environ["USAGE"]) / f"{os.getpid()}").open("a", buffering=1) as file:
        for step in range(first, 100_000):
            file.write(f"{device} {time.monotonic()};\n")
            time.sleep(0.25)
            trial.report(x * (1 - math.exp(-(step + 1) / 8)), step)
            segment.save(_writer(trial.number, step), step=step, value=x)
            file.write(f"{device} {time.monotonic()};\n")
            directive = segment.directive()
            if directive.leave:
                segment.leave(directive)
    return x


def filling(trial: Any) -> float:
    """The disk is full from the fourth step of its first segment on."""
    report, first = trial.report, optuna_deadline.segment(trial).fence == 1

    def fill_and_report(value: float, step: int) -> None:
        if first and step == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        report(value, step)

    trial.report = fill_and_report
    return slow(trial)


def parenting(trial: Any) -> float:
    """Slow, with a process of its own, as a loader has."""
    child = subprocess.Popen(["sleep", "1000"])
    with (Path(os.environ["RANK_LOG"])).open("a") as file:
        file.write(f"{child.pid}\n")
    return slow(trial)


def staying(trial: Any) -> float:
    """Too long to finish; stays warm where it may, and says in which process a step was made."""
    segment = optuna_deadline.segment(trial)
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    asked: list[bool] = []
    first = json.loads(segment.resume.read_text())["step"] + 1 if segment.resume else 0
    for step in range(first, 100_000):
        time.sleep(0.05)
        trial.report(step, step)
        with (Path(os.environ["RANK_LOG"])).open("a") as file:
            file.write(f"{trial.number} {step} {os.getpid()} {segment.fence}\n")
        directive = segment.directive()
        if directive.leave:
            segment.save(_writer(trial.number, step), step=step, value=step)
            if not directive.keep_warm:
                segment.leave(directive)
            segment.keep_warm(lambda: bool(asked))
    return 0.0


def refused_by_databases(trial: Any) -> float:
    """Passes what SQLite or PostgreSQL may not store; each error is caught here."""
    calls: dict[str, Callable[[], Any]] = {
        "a long key": lambda: trial.set_user_attr("k" * 1000, "v"),
        "a key that is a number": lambda: trial.set_user_attr(3, "v"),
        "NUL in a key": lambda: trial.set_user_attr("a\0b", "v"),
        "half a character in a key": lambda: trial.set_user_attr("\ud800", "v"),
        "NUL in a value": lambda: trial.set_user_attr("a", "a\0b"),
        "half a character in a value": lambda: trial.set_user_attr("b", "\ud800"),
        "a long name": lambda: trial.suggest_float("n" * 1000, 0, 1),
        "NUL in a name": lambda: trial.suggest_float("n\0", 0, 1),
        "NUL in a choice": lambda: trial.suggest_categorical("c", ["\0", "b"]),
        "an endless number": lambda: trial.set_user_attr("d", 10**5000),
        "a circle": lambda: trial.set_user_attr("e", circle),
        "no report": lambda: trial.report("x", 1),
    }
    circle: list[Any] = []
    circle.append(circle)
    errors = {}
    for name, call in calls.items():
        try:
            call()
            errors[name] = "accepted"
        except Exception as error:
            errors[name] = type(error).__name__
    trial.set_user_attr("errors", errors)
    trial.report(0.5, 1)
    return 0.5
