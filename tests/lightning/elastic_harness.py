"""Real ranks for the tests: processes, gloo and training are real, only the worker is played.

One process holds torch and Lightning, as the worker's fork server does; each segment forks its
ranks from it. Rank 0's directives come from a script by global step.
"""

from __future__ import annotations

import importlib
import json
import logging
import multiprocessing as mp
import os
import signal
import socket
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from forking import CONTEXT, preload

from optuna_deadline.checkpoints.files import write_atomically
from optuna_deadline.rank.process import show_info_messages

LEFT = 85
preload("torch", "lightning.pytorch", "optuna", "torchmetrics", "optuna_deadline_lightning")


@dataclass
class Plan:
    """What a played worker does with one segment, and what is trained."""

    folder: str
    ranks: int = 1
    fence: int = 1
    resume: str | None = None
    leave_at: int | None = None  # the global step from which the directive holds
    kind: str = "resize"
    term_rank: int | None = None  # this rank gets SIGTERM in the middle of step `leave_at`
    direction: str = "maximize"
    save_every: float = 1e9
    #: of the training
    training: str = "elastic_training"  # the module whose `train` the ranks run
    epochs: int = 3
    samples: int = 96
    reports: int = 1  # in an epoch of a loop
    batch: int = 16
    dropout: float = 0.0
    optimizer: str = "adam"
    schedule: str = "cosine"
    patience: int | None = None  # of an EarlyStopping
    workers: int = 0
    validate: bool = True
    nan: bool = False
    monitor: str = "val_acc"
    drop_last: bool = False
    explicit: bool = False  # the loader comes from `DeadlineCallback.loader`
    estimate: bool = False  # the module asks for `estimated_stepping_batches`
    single: bool = False  # in single precision
    norm: bool = False  # with a batch norm, whose batches differ between numbers of slots
    scaling: str = ""  # the name of a rule by which the batch grows
    extras: tuple[str, ...] = ()  # more callbacks and plugins, by names of elastic_extras
    data: str = ""  # other training data, by a name of elastic_data
    net: str = ""  # another module, by a name of elastic_nets
    options: dict[str, Any] = field(default_factory=dict)  # of the trainer, for the slots
    trainer: dict[str, Any] = field(default_factory=dict)


class PlayedSegment:
    """The segment protocol, answered from a script."""

    __module__ = "optuna_deadline"  # as that of the real ones
    elastic = True

    def __init__(self, plan: Plan, rank: int) -> None:
        self.plan, self.rank, self.world_size, self.fence = plan, rank, plan.ranks, plan.fence
        self.resume = Path(plan.resume) if plan.resume else None
        self.direction = plan.direction
        self.step = 0  # the harness's module tells it
        self.published: list[dict[str, Any]] = []
        self.positions: list[float] = []
        self.last_step: int | None = None
        self.limits: list[tuple[int, str]] = []
        self.regimes: list[str] = []

    @property
    def folder(self) -> Path:
        return Path(self.plan.folder)

    def newest(self) -> Any:
        from optuna_deadline.directives import KEEP, Directive, Kind

        scripted = self.plan.leave_at is not None and self.plan.term_rank is None
        if scripted and self.rank == 0 and self.step >= (self.plan.leave_at or 0):
            return Directive(Kind(self.plan.kind), "as scripted", seq=7)
        return KEEP

    def directive(self) -> Any:
        return self.newest()

    def progress(self, position: float) -> None:
        self.positions.append(position)

    def horizon(self, last_step: int) -> None:
        self.last_step = last_step

    def regime(self, name: str) -> None:
        self.regimes.append(name)

    def validated(self, seconds: float) -> None:
        assert seconds >= 0.0

    def keep_slots(self) -> None:
        self.kept = True

    def limit_slots(self, slots: int, reason: str) -> None:
        self.limits.append((slots, reason))

    def publish(self, path: Path, *, step: int, value: float | None = None) -> None:
        assert path.exists() and path.parent == self.folder
        self.published.append({"path": str(path), "step": step, "value": value})

    def save(self, write: Any, *, step: int, value: float | None = None, name: str = "") -> Any:
        if self.rank != 0:
            return None
        path = write_atomically(self.folder / name, write)
        self.publish(path, step=step, value=value)
        return path

    def leave(self, directive: Any = None) -> NoReturn:
        from optuna_deadline.segments import SegmentEnd

        raise SegmentEnd(directive)


class PlayedTrial:
    """Takes reports, as the rank's trial does."""

    number = 3

    def __init__(self, segment: PlayedSegment) -> None:
        self.segment = segment
        self.reports: list[tuple[int, float]] = []
        self.user_attrs: dict[str, Any] = {}

    def report(self, value: float, step: int) -> None:
        self.reports.append((step, value))

    def set_user_attr(self, key: str, value: Any) -> None:
        self.user_attrs[key] = value


class Listening(logging.Handler):
    """Keeps the library's log lines, with the number of steps of the segment."""

    def __init__(self, seen: dict[str, Any]) -> None:
        super().__init__(logging.INFO)
        self.seen = seen
        seen["logged"] = []
        logging.captureWarnings(True)
        show_info_messages()
        logging.getLogger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(("optuna_deadline", "py.warnings")):
            print(record.levelname, record.getMessage(), flush=True)
            self.seen["logged"].append((len(self.seen.get("steps", ())), record.getMessage()))


class Seen(dict[str, Any]):
    """What a rank has seen: no plain attribute of a module, which would go on with the trial."""


def run_segment(plan: Plan, timeout: float = 60.0) -> list[dict[str, Any]]:
    """Fork the ranks of a segment, wait for them, and return what each one saw."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files = [Path(plan.folder) / f"rank-{plan.fence}-{rank}.json" for rank in range(plan.ranks)]
    processes = [
        CONTEXT.Process(target=_rank, args=(plan, rank, port, str(files[rank])))
        for rank in range(plan.ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout)
        if process.is_alive():
            process.kill()
    seen = [json.loads(file.read_text()) if file.exists() else {} for file in files]
    for rank, process in zip(seen, processes, strict=True):
        rank["exitcode"] = process.exitcode
    return seen


def _rank(plan: Plan, rank: int, port: int, out: str) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(plan.ranks),
        LOCAL_WORLD_SIZE=str(plan.ranks),
        NODE_RANK="0",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        OMP_NUM_THREADS="1",
    )
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Else the loader's workers come from a second forkserver, which imports torch for seconds.
    mp.set_start_method("fork", force=True)
    log = open(out + ".log", "w")  # noqa: SIM115
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    import torch

    torch.set_num_threads(1)

    from optuna_deadline.segments import SegmentEnd

    segment = PlayedSegment(plan, rank)
    trial = PlayedTrial(segment)
    seen = Seen(left=None, error=None)
    Listening(seen)
    code = 0
    try:
        importlib.import_module(plan.training).train(plan, trial, segment, seen)
    except SegmentEnd as end:
        seen["left"] = [end.directive.kind.value, end.directive.reason, end.directive.seq]
        code = LEFT
    except BaseException as error:
        seen["error"] = f"{type(error).__name__}: {error}"
        traceback.print_exc()
        code = 1
    seen["reports"] = trial.reports
    seen["published"] = segment.published
    seen["positions"] = segment.positions
    seen["horizon"] = segment.last_step
    seen["limits"] = segment.limits
    Path(out).write_text(json.dumps(seen))
    sys.exit(code)
