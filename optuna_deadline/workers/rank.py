"""One rank of a segment: a forked process that runs the user's objective and nothing else."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import optuna

from optuna_deadline.segments import SegmentEnd
from optuna_deadline.workers.link import Link, RawLink
from optuna_deadline.workers.objective import Objective
from optuna_deadline.workers.rank_trial import DEVICES, RankSegment, RankTrial


@dataclass(frozen=True)
class RankSpec:
    """What a rank is told at birth."""

    number: int
    rank: int
    world_size: int
    port: int
    fence: int
    folder: str
    store: str | None  #: a URL, where checkpoints are kept elsewhere than in the folder
    resume: str | None
    devices: tuple[str, ...]
    direction: str
    trusted_until: float  #: as long as nothing else is heard from the worker
    grace: float  #: how long after that nobody else gets the slots


def run_rank(raw: RawLink, spec: RankSpec, objective: Objective) -> NoReturn:
    """Run the objective to its end, say how it ended, and exit without the parent's clean-ups."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.environ.update(_environment(spec))
    # Data loaders fork from what is warm here; a fresh process would import everything again.
    multiprocessing.set_start_method("fork", force=True)
    link = Link(raw, spec.trusted_until, spec.grace)
    segment = RankSegment(
        link,
        rank=spec.rank,
        world_size=spec.world_size,
        fence=spec.fence,
        folder=Path(spec.folder),
        resume=Path(spec.resume) if spec.resume else None,
        direction=spec.direction,
        store=spec.store,
    )
    try:
        value = objective(RankTrial(link, segment, spec.number))
        link.end("result", None if value is None else float(value))
    except SegmentEnd as end:
        link.end("left", end.directive.kind.value)
    except optuna.TrialPruned:
        link.end("pruned", None)
    except BaseException as error:
        link.end("error", _describe(error))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _environment(spec: RankSpec) -> dict[str, str]:
    names = {
        "RANK": spec.rank,
        "LOCAL_RANK": spec.rank,
        "NODE_RANK": 0,
        "WORLD_SIZE": spec.world_size,
        "LOCAL_WORLD_SIZE": spec.world_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": spec.port,
        DEVICES: ",".join(spec.devices),  # the gang's
    }
    environment = {name: str(value) for name, value in names.items()}
    gpus = [name.partition(":")[2] for name in spec.devices if name.startswith("gpu:")]
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"  # the gang is on one host
    return environment


def _describe(error: BaseException) -> tuple[str, str]:
    line = f"{type(error).__name__}: {error}"
    try:
        pickle.dumps(line)
    except Exception:
        line = type(error).__name__
    return line, "".join(traceback.format_exception(error))
