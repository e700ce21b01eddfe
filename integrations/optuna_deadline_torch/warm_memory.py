"""Frees the device memory of a warm trial's tensors, and restores it.

Whole storages are emptied in place: copied to the host, then resized to 0, as FSDP does with its
parameters. Every tensor, view and alias stays the same object, so references stay valid. A tensor
that is missed here keeps its device memory and its value.

``on_keep_warm`` of an object, if it has one, is called before, and may return further tensors to
move; ``on_wake`` is called when all tensors are back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from optuna_deadline.callers import callers
from optuna_deadline_torch.saver import copied

_CONTAINERS = (list, tuple, set, frozenset, deque)
_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.Size, torch.dtype, torch.device)
_OPAQUE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, FrameType)
#: Data is in the host's memory, and may be a million objects.
_DATA = (Dataset, DataLoader, Sampler, torch.Generator)
_MEMINFO = Path("/proc/meminfo")
_SPARE = 0.1  # share of the host's memory that stays free


def is_device_memory(device: torch.device) -> bool:
    """Whether a device's memory is separate from the host's."""
    return device.type != "cpu"


class DeviceMemory:
    """The device memory of some objects and of all tensors below them.

    Args:
        roots: Models, optimizers, scalers, callbacks: tensors are found in their attributes and
            in lists and dicts at any depth.
        beyond: Classes whose objects are not searched.
        given_up: Which devices are meant; all but the CPU by default.
    """

    def __init__(
        self,
        roots: Iterable[Any],
        *,
        beyond: tuple[type, ...] = (),
        given_up: Callable[[torch.device], bool] | None = None,
    ) -> None:
        given_up = given_up or is_device_memory
        found = (one.untyped_storage() for one in tensors(roots, beyond) if _is_plain(one))
        self._storages = {
            storage._cdata: storage
            for storage in found
            if given_up(storage.device) and storage.nbytes() and storage.resizable()
        }
        self._kept: dict[int, torch.Tensor] = {}

    @property
    def bytes(self) -> int:
        """Its size; the host needs as much."""
        return sum(
            self._kept[key].numel() if key in self._kept else storage.nbytes()
            for key, storage in self._storages.items()
        )

    def fits(self) -> bool:
        """Whether the host has enough memory, as far as that is known."""
        total, free = _host_memory()
        return free - self.bytes >= _SPARE * total

    def offload(self) -> None:
        """Copy all of it to the host, and free it for other processes."""
        _wait_for_devices()
        for key, storage in self._storages.items():
            on_device = _bytes_of(storage)
            kept = _host_room(storage)
            kept.copy_(on_device, non_blocking=True)
            self._kept[key] = kept
        _wait_for_devices()
        for storage in self._storages.values():
            storage.resize_(0)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            # cuBLAS allocates its workspace again when it needs it.
            getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()
            torch.cuda.empty_cache()  # cached memory is not free for other processes

    def restore(self) -> None:
        """Copy all of it back to the device.

        Raises:
            torch.OutOfMemoryError: Other processes use the device's memory.
        """
        for key, storage in self._storages.items():
            kept = self._kept[key]
            storage.resize_(kept.numel())
            _bytes_of(storage).copy_(kept, non_blocking=True)
        _wait_for_devices()
        self._kept.clear()

    def readable(self, state: Any) -> Any:
        """A copy of a state, with the host's copies instead of freed tensors."""
        return copied(state, self._on_host)

    def _on_host(self, one: torch.Tensor) -> torch.Tensor:
        kept = self._kept.get(one.untyped_storage()._cdata) if _is_plain(one) else None
        if kept is None:
            return one.detach().to("cpu", copy=True)
        room = torch.empty(0, dtype=one.dtype)
        return room.set_(kept.untyped_storage(), one.storage_offset(), one.size(), one.stride())


def tensors(roots: Iterable[Any], beyond: tuple[type, ...] = ()) -> Iterator[torch.Tensor]:
    """All tensors below some objects, gradients included, each once."""
    seen: dict[int, Any] = {}  # the objects too: an id is reused when its object is deleted
    open_ends = list(roots)
    while open_ends:
        one = open_ends.pop()
        if isinstance(one, _PLAIN) or id(one) in seen:
            continue
        seen[id(one)] = one
        if isinstance(one, torch.Tensor):
            yield one
            if one.is_leaf and one.grad is not None:
                open_ends.append(one.grad)
        elif isinstance(one, dict):
            open_ends += one.values()
        elif isinstance(one, _CONTAINERS):
            open_ends += [part for part in one if not isinstance(part, _PLAIN)]
        elif not isinstance(one, (*_OPAQUE, *_DATA, *beyond)):
            open_ends += [*getattr(one, "__dict__", {}).values()]


def frame_locals() -> list[Any]:
    """The local variables of the running functions: the batch, the loss."""
    return [
        value
        for frame in callers()
        if frame.f_code.co_name != "<module>"
        for value in frame.f_locals.values()
        if isinstance(value, (torch.Tensor, dict, *_CONTAINERS))
    ]


def _is_plain(one: torch.Tensor) -> bool:
    """Whether a tensor is its storage and nothing more."""
    plain = one.layout is torch.strided and not one.is_meta and not one.is_quantized
    return plain and not hasattr(type(one), "__tensor_flatten__")


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage)


def _host_room(storage: torch.UntypedStorage) -> torch.Tensor:
    size = storage.nbytes()
    if storage.device.type == "cuda":
        try:  # pinned memory makes copies from a GPU at least twice as fast
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)
        except RuntimeError:
            pass
    return torch.empty(size, dtype=torch.uint8)


def _wait_for_devices() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def _host_memory() -> tuple[int, float]:
    """The total and free bytes; 0 and infinity if the system does not report them."""
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        return tuple(int(lines[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))  # type: ignore[return-value]
    except (OSError, KeyError, ValueError):
        return 0, float("inf")


class TrainingObjects:
    """The objects of one training.

    Args:
        objects: The model, its optimizers and all other objects with tensors or park hooks.
        beyond: Classes whose objects are not searched.
    """

    def __init__(self, objects: Sequence[Any], beyond: tuple[type, ...] = ()) -> None:
        self._objects = objects
        self._beyond = beyond

    def memory(self) -> DeviceMemory:
        """All that is on the device now."""
        more = [
            on_keep_warm()
            for one in self._objects
            if (on_keep_warm := getattr(one, "on_keep_warm", None))
        ]
        return DeviceMemory([*self._objects, *more, *frame_locals()], beyond=self._beyond)

    def after_restore(self) -> None:
        """Call the hooks once everything is on the device again."""
        for one in self._objects:
            if (on_keep_warm := getattr(one, "on_wake", None)) is not None:
                on_keep_warm()
