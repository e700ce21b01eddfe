"""The objective of runs on a cluster: a loop that records where and when it trains."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna_deadline

EVERY = 5  #: steps between two checkpoints
STEP = 0.2  #: seconds of a step on one slot
LAST = 2000
LOGS = "STRETCH_LOGS"  #: the variable that names the folder for what ranks write


def train(trial: Any) -> float:
    """Train, twice as fast on two slots; rank 0 records each step."""
    x = trial.suggest_float("x", 0.0, 1.0)
    segment = optuna_deadline.segment(trial)
    segment.horizon(LAST)
    first = json.loads(segment.resume.read_text())["step"] + 1 if segment.resume else 0
    facts = {
        "host": os.environ["OPTUNA_DEADLINE_HOST"],
        "number": trial.number,
        "fence": segment.fence,
        "slots": segment.world_size,
        "first": first,
    }
    log = -1
    if segment.rank == 0:
        name = f"{trial.number}-{segment.fence}"
        log = os.open(Path(os.environ[LOGS]) / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, json.dumps(facts).encode() + b"\n")
    value = 0.0
    for step in range(first, LAST + 1):
        time.sleep(STEP / segment.world_size)
        value = x * (1 - math.exp(-(step + 1) / 60))
        if log >= 0:
            os.write(log, f"{time.monotonic():.3f} {step}\n".encode())
        trial.report(value, step)
        directive = segment.directive()
        if directive.leave or step % EVERY == EVERY - 1:
            text = json.dumps({"step": step})
            segment.save(_writer(text), step=step, value=value)
        if directive.leave:
            segment.leave(directive)
    return value


def _writer(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)
