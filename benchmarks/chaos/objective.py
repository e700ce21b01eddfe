"""The objective of the chaos run: a loop that logs its use of the slot every few milliseconds."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

import optuna_deadline
from benchmarks.chaos.usage import UsageLog

EVERY = 2  #: steps between two checkpoints
_TICK = 0.01


def train(trial: Any) -> float:
    """Report each step, save every second one, and follow directives; two slots are faster."""
    segment = optuna_deadline.segment(trial)
    first = json.loads(segment.resume.read_text())["step"] + 1 if segment.resume else 0
    folder, study = Path(os.environ["CHAOS_USAGE"]), os.environ["CHAOS_STUDY"]

    last, ticks = int(os.environ["CHAOS_LAST"]), int(os.environ["CHAOS_TICKS"])

    def begin(step: int) -> UsageLog:
        return UsageLog(folder, study, trial.number, segment.fence, segment.rank, step)

    log = begin(first)
    x = trial.suggest_float("x", 0.0, 1.0)
    segment.horizon(last)
    value = 0.0
    sick = folder.parent / "sick"
    for step in range(first, last + 1):
        if sick.exists() and log.device in sick.read_text():
            raise RuntimeError(f"CUDA error: device lost: {log.device}")
        for _ in range(ticks // segment.world_size):
            time.sleep(_TICK)
            log.using(step - 1)
        log.using(step)
        value = x * (1 - math.exp(-(step + 1) / 20))
        trial.report(value, step)
        directive = segment.directive()
        if directive.leave or step % EVERY == EVERY - 1 or step == last:
            segment.save(_writer(trial.number, step), step=step, value=value)
        if directive.leave and not directive.keep_warm:
            segment.leave(directive)
        elif directive.leave:
            segment.keep_warm()
            log = begin(step + 1)
        log.using(step)
    return value


def _writer(number: int, step: int) -> Any:
    text = json.dumps({"number": number, "step": step})
    return lambda path: path.write_text(text)
