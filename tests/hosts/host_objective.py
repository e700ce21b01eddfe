"""An objective for workers on hosts of their own: it writes down where and when it trains."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import optuna_deadline

EVERY = 5  #: steps between two checkpoints
_TICK = 0.02
_TICKS = 5  #: in a step


def train(trial: Any) -> float:
    """Trains on until it is told to leave."""
    segment = optuna_deadline.segment(trial)
    first = json.loads(segment.resume.read_text())["step"] + 1 if segment.resume else 0
    facts = {"host": socket.gethostname(), "number": trial.number, "fence": segment.fence}
    file = Path(os.environ["HOST_LOG"]) / f"{trial.number}-{segment.fence}-{os.getpid()}"
    log = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, json.dumps({**facts, "first": first}).encode() + b"\n")
    for step in range(first, 100_000):
        for _ in range(_TICKS):
            time.sleep(_TICK)
            os.write(log, f"{time.monotonic():.3f} {step}\n".encode())
        trial.report(step / 1000, step)
        directive = segment.directive()
        if directive.leave or step % EVERY == EVERY - 1:
            text = json.dumps({"step": step})
            segment.save(lambda path, t=text: path.write_text(t), step=step, value=step / 1000)
        if directive.leave:
            segment.leave(directive)
    return 0.0
