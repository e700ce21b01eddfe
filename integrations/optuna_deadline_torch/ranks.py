"""The devices and processes of a model, and SIGTERM as a flag that training reads.

A signal handler must only set a flag. Lightning's handler runs a collective: with the signal on
one of two ranks, the collectives no longer match, and the ranks die without a checkpoint.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from optuna_deadline.errors import DeadlineError

_SHARDED = {
    "FullyShardedDataParallel": "FSDP",
    "FSDPModule": "FSDP",
    "DeepSpeedEngine": "DeepSpeed",
}
#: torch's variable that makes every rank a client of a store that exists.
_EXTERNAL_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_served: list[Any] = []
_WRAPPED = {"DistributedDataParallel", "DataParallel"}

# A process's first optimizer imports for seconds. This does it once in the fork server,
# instead of in every rank of every segment.
torch.optim.SGD([torch.nn.Parameter(torch.empty(0))], lr=0.0)


def refuse_wrapped(model: nn.Module) -> None:
    """Refuse models that are not bare.

    Raises:
        DeadlineError: The model is sharded, so that its parts fit one number of slots only, or it
            is already wrapped for several devices.
    """
    names = {base.__name__ for module in model.modules() for base in type(module).__mro__}
    if sharded := sorted(names & _SHARDED.keys()):
        raise DeadlineError(
            f"A model sharded by {_SHARDED[sharded[0]]} cannot change its number of slots:"
            " each rank holds only a piece of it. Pass the unwrapped model, which has "
            "to fit on one"
            " slot, or train it outside of an elastic trial."
        )
    if wrapped := sorted(names & _WRAPPED):
        raise DeadlineError(
            f"The model is wrapped in {wrapped[0]} already: pass the unwrapped model; "
            "ElasticLoop wraps it"
            " where there is more than one slot."
        )


def slot_device(elastic: bool) -> torch.device:
    """The device that the worker granted to this rank; under plain Optuna the first one."""
    if elastic and not os.environ.get("CUDA_VISIBLE_DEVICES", "").strip():
        return torch.device("cpu")  # CPU slots, possibly on a host with a GPU
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) if elastic else 0)


def serve_store() -> None:
    """Serve the store of the process group on one interface, before the group is initialized.

    torch's store listens on all interfaces, and every process that reaches it may write keys. So
    rank 0 serves one on the gang's own address, which is the loopback for a gang on one host.
    Every rank is a client of it, as under ``torchrun``.
    """
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    if world_size == 1 or os.environ.get(_EXTERNAL_STORE):
        return
    os.environ[_EXTERNAL_STORE] = "True"
    if os.environ["RANK"] != "0":
        return
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    listener = _listen(address, port)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        address, port, world_size, is_master=True, wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )  # fmt: skip
    _served.append(store)  # as long as the process lives


def _listen(address: str, port: int) -> socket.socket:
    """Listen on an address; on all, if it is not this host's own, such as that of a proxy."""
    try:
        return socket.create_server(
            (address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET
        )
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL and not isinstance(error, socket.gaierror):
            raise
        return socket.create_server(("", port))


def connect(device: torch.device) -> None:
    """Join the process group in the worker's environment."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        serve_store()
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")


def wrapped(model: nn.Module, device: torch.device, options: Mapping[str, Any]) -> nn.Module:
    """``model`` with its gradients averaged over the ranks."""
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=ids, **options)


class TermFlag:
    """Records SIGTERM and never acts on it."""

    def __init__(self) -> None:
        self.raised = False

    def install(self) -> None:
        """Replace the handler of SIGTERM; call after Lightning has registered its own."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.raised = True
