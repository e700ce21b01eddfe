"""Which slots this machine can offer, found without ever touching CUDA."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from numbers import Integral

from optuna_deadline.errors import DeadlineError, argument, spelled


@dataclass(frozen=True)
class Offer:
    """What a worker brings into the pool."""

    gpus: tuple[int, ...] = ()
    cpus: int = 0

    @property
    def devices(self) -> list[str]:
        """Names of the GPU slots."""
        return [f"gpu:{index}" for index in self.gpus]

    @property
    def size(self) -> int:
        """How many slots it is."""
        return len(self.gpus) + self.cpus


def make_offer(gpus: str | int | None = None, cpus: int | None = None) -> Offer:
    """Check what is offered against what the machine has.

    Args:
        gpus: "all", a list such as "0,1", or a single number's index.
        cpus: CPU shares; each trains with one thread.

    Raises:
        DeadlineError: Nothing is offered, or a GPU is named that the machine does not have.
    """
    if gpus is None and cpus is None:
        some = spelled("gpus='all' or cpus=2", "--gpus all or --cpus 2")
        raise DeadlineError(f"No slots were offered: name some with {some}.")
    if cpus is not None and not (isinstance(cpus, Integral) and cpus >= 0):
        raise DeadlineError(
            f"{argument('cpus')} must be a positive number of slots, but got {cpus!r}."
        )
    chosen = _choose_gpus(str(gpus)) if gpus is not None else ()
    if not chosen and not cpus:
        raise DeadlineError("0 slots can train nothing: offer at least one GPU or CPU share.")
    return Offer(chosen, cpus or 0)


def present_gpus() -> list[int]:
    """Indices of the GPUs that the driver lists and CUDA_VISIBLE_DEVICES leaves us."""
    return list(gpu_uuids())


def gpu_uuids() -> dict[int, str]:
    """The uuids of the present GPUs by their indices; empty where the driver tells none."""
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


def _choose_gpus(wanted: str) -> tuple[int, ...]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if "MIG-" in visible:
        raise DeadlineError(
            f"CUDA_VISIBLE_DEVICES names a MIG part ({visible}), which cannot be a slot: name"
            " whole GPUs there, or leave it out."
        )
    present = present_gpus()
    if wanted == "all":
        if not present:
            raise DeadlineError(
                f"This machine has no GPU that the driver lists; use {argument('cpus')} instead."
            )
        return tuple(present)
    try:
        chosen = tuple(int(part) for part in wanted.split(",") if part.strip())
    except ValueError:
        raise DeadlineError(
            f"{argument('gpus')} must be 'all' or numbers such as '0,1', not {wanted!r}."
        ) from None
    missing = sorted(set(chosen) - set(present))
    if missing:
        listed = ", ".join(map(str, present)) or "none"
        raise DeadlineError(f"There is no GPU {missing[0]} on this machine (it has: {listed}).")
    return chosen


def host_name() -> str:
    """The name under which this machine's slots are listed."""
    return os.environ.get("OPTUNA_DEADLINE_HOST") or socket.gethostname()


def free_port(address: str = "127.0.0.1") -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
