"""The slots that this host can offer, found without initializing CUDA."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral

from optuna_deadline.errors import DeadlineError, argument, spelled


@dataclass(frozen=True)
class Offer:
    """The slots that a worker offers to the pool."""

    gpus: tuple[int, ...] = ()
    cpus: int = 0

    @property
    def devices(self) -> list[str]:
        """Names of the GPU slots."""
        return [f"gpu:{index}" for index in self.gpus]

    @property
    def size(self) -> int:
        """The number of slots."""
        return len(self.gpus) + self.cpus


def make_offer(
    gpus: str | int | None = None,
    cpus: int | None = None,
    gpu_ids: str | Sequence[int] | None = None,
    oversubscribe: bool = False,
) -> Offer:
    """Check an offer against the host.

    Args:
        gpus: The number of GPUs, or "all".
        cpus: CPU shares; each trains with one thread.
        gpu_ids: The indices of the GPUs, as [0, 3] or "0,3", instead of their number.
        oversubscribe: Whether there may be more CPU shares than cores.

    Raises:
        DeadlineError: Nothing is offered, or more than the host has.
    """
    if gpus is None and cpus is None and gpu_ids is None:
        some = spelled("gpus='all' or cpus=2", "--gpus all or --cpus 2")
        raise DeadlineError(f"No slots were offered: name some with {some}.")
    if cpus is not None and not (isinstance(cpus, Integral) and cpus >= 0):
        raise DeadlineError(
            f"{argument('cpus')} must be a positive number of slots, but got {cpus!r}."
        )
    cores = own_cores()
    if cpus is not None and cpus > cores and not oversubscribe:
        more = spelled("WorkerOptions(oversubscribe=True)", "--oversubscribe")
        raise DeadlineError(
            f"{argument('cpus')} asks for {cpus} CPU slots, more than the cores of this process "
            f"({cores}): ask for fewer, or add {more}."
        )
    chosen = _choose_gpus(gpus, gpu_ids)
    if not chosen and not cpus:
        raise DeadlineError(
            "A worker with 0 slots cannot train: offer at least one GPU or CPU slot."
        )
    return Offer(chosen, cpus or 0)


def threads_of(offer: Offer) -> int | None:
    """Threads of each rank: one on a CPU share, unlimited with a GPU."""
    return None if offer.gpus else 1


def own_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def present_gpus() -> list[int]:
    """Indices of the GPUs that the driver lists and CUDA_VISIBLE_DEVICES allows."""
    return list(gpu_uuids())


def gpu_uuids() -> dict[int, str]:
    """The UUIDs of the present GPUs by index; empty if the driver lists none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    query = [program, "--query-gpu=index,uuid", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=30)
    listed = {}
    for line in answer.stdout.splitlines():
        index, _, uuid = (part.strip() for part in line.partition(","))
        if index.isdigit():
            listed[int(index)] = uuid
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return listed
    names = visible.replace(" ", "").split(",")
    return {
        index: uuid
        for index, uuid in listed.items()
        if str(index) in names or any(name and uuid.startswith(name) for name in names)
    }


def _choose_gpus(gpus: str | int | None, gpu_ids: str | Sequence[int] | None) -> tuple[int, ...]:
    if gpus is None and gpu_ids is None:
        return ()
    count, ids = argument("gpus"), argument("gpu_ids")
    if gpus is not None and gpu_ids is not None:
        raise DeadlineError(f"{count} and {ids} both select GPUs: give one of them.")
    wanted = str(gpus).strip()
    if gpu_ids is None and (isinstance(gpus, bool) or not (wanted == "all" or wanted.isdecimal())):
        raise DeadlineError(
            f"{count} must be 'all' or a number of GPUs such as 2, not {gpus!r}; {ids} "
            "selects single ones."
        )
    named = None if gpu_ids is None else _indices(gpu_ids)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if "MIG-" in visible:
        raise DeadlineError(
            f"CUDA_VISIBLE_DEVICES names a MIG part ({visible}), which cannot be a slot: name"
            " whole GPUs there, or leave it out."
        )
    present = present_gpus()
    if not present:
        raise DeadlineError(
            f"This machine has no GPU that the driver lists; use {argument('cpus')} instead."
        )
    if named is not None:
        if missing := sorted(set(named) - set(present)):
            listed = ", ".join(map(str, present))
            raise DeadlineError(
                f"There is no GPU {missing[0]} on this machine (it has: {listed})."
            )
        return named
    if wanted != "all" and int(wanted) > len(present):
        raise DeadlineError(
            f"{count} asks for {wanted} GPUs, more than this machine has ({len(present)}): "
            f"ask for fewer; {ids} names single ones."
        )
    return tuple(present if wanted == "all" else present[: int(wanted)])


def _indices(gpu_ids: str | Sequence[int]) -> tuple[int, ...]:
    parts = gpu_ids.split(",") if isinstance(gpu_ids, str) else gpu_ids
    try:
        return tuple(dict.fromkeys(int(part) for part in parts))
    except (TypeError, ValueError):
        raise DeadlineError(
            f"{argument('gpu_ids')} must be indices of GPUs such as 0,3, not {gpu_ids!r}."
        ) from None


def host_name() -> str:
    """The name under which this host's slots are listed."""
    return os.environ.get("OPTUNA_DEADLINE_HOST") or socket.gethostname()


#: Below the ports of outgoing connections, which may take one at any moment.
_PORTS = range(10_000, 32_000)


def free_port(address: str = "127.0.0.1") -> int:
    """A port that was free a moment ago."""
    for _ in range(100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((address, _PORTS[secrets.randbelow(len(_PORTS))]))
            return int(probe.getsockname()[1])
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
