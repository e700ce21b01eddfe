"""One rank of a segment: a forked process that runs the user's objective and nothing else."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import multiprocessing
import os
import random
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from multiprocessing import AuthenticationError
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NoReturn

import numpy as np
import optuna

from optuna_deadline.rank.channel import Channel
from optuna_deadline.rank.late_imports import ImportLog
from optuna_deadline.rank.link import Link
from optuna_deadline.rank.messages import End, Left, Pruned, Raised, Returned
from optuna_deadline.rank.objective import Objective
from optuna_deadline.rank.processes import RANK
from optuna_deadline.rank.rendezvous import LeaderEndpoint, connect_to_leader, interface_of
from optuna_deadline.rank.trial import DEVICES, RankSegment, RankTrial
from optuna_deadline.segments import SegmentEnd

_MAX_ERROR = 100_000  # characters of an error's text and of its trace
_CONNECT_SECONDS = 20.0  # seconds to connect to the worker on another host


@dataclass(frozen=True)
class LocalRank:
    """The index of a rank among those of its host."""

    rank: int
    size: int
    node_rank: int  #: the index of this host in the gang
    address: str | None = None  #: interface of this host; None if the gang is on one host


@dataclass(frozen=True)
class RankSpec:
    """The arguments of a new rank."""

    number: int
    rank: int
    world_size: int
    rendezvous: tuple[str, int]  #: address and port of the rendezvous
    local: LocalRank
    fence: int
    folder: str
    store: str | None  #: a URL, if checkpoints are kept outside the folder
    resume: str | None
    devices: tuple[str, ...]
    direction: str
    trusted_until: float  #: until the worker extends it
    grace: float  #: seconds after that in which no other trial gets the slots
    #: to the leader, if that is another worker
    leader_endpoint: LeaderEndpoint | None = None


def run_rank(
    raw: Channel, spec: RankSpec, objective: Objective, imports: ImportLog | None = None
) -> NoReturn:
    """Run the objective, send how it ended, and exit without the parent's clean-ups."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _ignore_sigterm()
    os.environ.update(_environment(spec))
    # Data loaders fork from what is loaded here; a new process would import everything again.
    multiprocessing.set_start_method("fork", force=True)
    seed_by_trial(spec.number)
    show_info_messages()
    leader: Literal["here", "remote"] = "here" if spec.leader_endpoint is None else "remote"
    link = Link(raw, spec.trusted_until, spec.grace, leader)
    if spec.leader_endpoint is not None:
        _connect_to_leader(link, spec, spec.leader_endpoint)
    segment = RankSegment(
        link,
        rank=spec.rank,
        world_size=spec.world_size,
        fence=spec.fence,
        folder=Path(spec.folder),
        resume=Path(spec.resume) if spec.resume else None,
        direction=spec.direction,
        store=spec.store,
        imports=imports,
    )
    ended = _run_objective(objective, RankTrial(link, segment, spec.number))
    segment.send_progress()
    if imports is not None:
        imports.write()
    link.send_end(ended)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _run_objective(objective: Objective, trial: RankTrial) -> End:
    """How the objective ended."""
    try:
        return Returned(_only_value(objective(trial)))
    except SegmentEnd:
        return Left()
    except optuna.TrialPruned:
        return Pruned()
    except BaseException as error:
        return _raised(error)


def _only_value(returned: Any) -> float | None:
    """The value of an objective, which may be in a list or a tuple, as in Optuna."""
    if isinstance(returned, Sequence) and not isinstance(returned, (str, bytes)):
        if len(returned) != 1:
            raise ValueError(
                f"The objective returned {len(returned)} values, and the study has one direction."
            )
        returned = returned[0]
    return None if returned is None else float(returned)


def seed_by_trial(number: int) -> None:
    """Seed Python, NumPy and torch, equally in each segment and rank of a trial.

    An objective that splits its data or draws its first weights at random has the same ones after
    a resume, and on each of its slots.
    """
    digest = hashlib.blake2b(f"trial {number}".encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little")
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)
    else:
        sys.meta_path.insert(0, _SeedsTorch(seed))


class _SeedsTorch(MetaPathFinder):
    """Seeds torch when it is imported later: the next segment may have it from the start."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of torch, whose loader seeds it."""
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_seed(module: ModuleType) -> None:
                load(module)
                module.manual_seed(self._seed)

            spec.loader.exec_module = load_and_seed  # type: ignore[method-assign]
        return spec


def show_info_messages() -> None:
    """Show what the library says at level INFO too, in a process that configures no logging."""
    logger = logging.getLogger("optuna_deadline")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    if logging.lastResort is not None:  # it shows warnings only, of all loggers without a handler
        logging.lastResort.setLevel(logging.INFO)


def _ignore_sigterm() -> None:
    """Ignore SIGTERM, which reaches the worker too, and the worker lets trials save.

    A rank that ended at once would lose its steps. Its child processes end as usual.
    """
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.register_at_fork(after_in_child=_restore_sigterm)


def _restore_sigterm() -> None:
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _connect_to_leader(link: Link, spec: RankSpec, endpoint: LeaderEndpoint) -> None:
    try:
        link.connect_leader(
            connect_to_leader(endpoint, spec.number, spec.fence, spec.rank, _CONNECT_SECONDS)
        )
    except (OSError, AuthenticationError) as error:
        print(f"optuna-deadline: rank {spec.rank} of trial {spec.number}: {error}", flush=True)
        os._exit(1)


def _environment(spec: RankSpec) -> dict[str, str]:
    names = {
        "RANK": spec.rank,
        "LOCAL_RANK": spec.local.rank,
        "NODE_RANK": spec.local.node_rank,
        "WORLD_SIZE": spec.world_size,
        "LOCAL_WORLD_SIZE": spec.local.size,
        "MASTER_ADDR": spec.rendezvous[0],
        "MASTER_PORT": spec.rendezvous[1],
        DEVICES: ",".join(spec.devices),  # the gang's
    }
    environment = {name: str(value) for name, value in names.items()}
    gpus = [name.partition(":")[2] for name in spec.devices if name.startswith("gpu:")]
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    environment[RANK] = str(os.getpid())
    environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the driver's order, which names the slots
    if spec.local.address is not None:
        if (interface := interface_of(spec.local.address)) is not None:
            environment["GLOO_SOCKET_IFNAME"] = environment["NCCL_SOCKET_IFNAME"] = interface
    elif sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"  # the gang is on one host
    return environment


def _raised(error: BaseException) -> Raised:
    line = f"{type(error).__name__}: {error}"
    trace = "".join(traceback.format_exception(error))
    return Raised(line[:_MAX_ERROR], trace[-_MAX_ERROR:])
