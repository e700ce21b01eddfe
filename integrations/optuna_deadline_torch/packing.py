"""Values as plain numbers, texts and tensors, which a checkpoint may hold.

Single ones are kept. Others are lists, whose first item names their kind.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection
from enum import Enum, Flag
from typing import Any

import numpy as np
import torch

from optuna_deadline.plain_data import imported

_MOST_ITEMS, _MOST_BYTES = 100_000, 2**24
_SINGLE = (type(None), bool, int, float, str)
_ROWS: dict[str, Any] = {one.__name__: one for one in (list, tuple, set, deque)}
_MAPS: dict[str, Any] = {one.__name__: one for one in (dict, OrderedDict, defaultdict, Counter)}
_MAKERS: dict[str, Any] = {one.__name__: one for one in (list, dict, set, int, float)}


class Unpackable(Exception):
    """The value is too large, or contains something else."""


def packed(value: Any, elsewhere: Collection[int] = (), most: int | None = None) -> Any:
    """A copy of a value in plain form, with tensors on the CPU.

    Args:
        value: The value.
        elsewhere: The :func:`address` of tensors that a checkpoint has in another place.
        most: Bytes that it may have, 16 MiB by default.

    Raises:
        Unpackable: It has no plain form.
    """
    try:
        return _Packing(elsewhere, most or _MOST_BYTES).of(value)
    except RecursionError:
        raise Unpackable from None


class _Packing:
    def __init__(self, elsewhere: Collection[int], most: int) -> None:
        self._elsewhere = elsewhere
        self._items, self._bytes = min(_MOST_ITEMS, most // 8), most

    def of(self, value: Any) -> Any:
        self._take(1)
        kind = type(value)
        if kind in _SINGLE:
            return value
        if isinstance(value, Enum) and imported(kind.__module__, kind.__qualname__) is kind:
            name = value.value if isinstance(value, Flag) else value.name  # a union has no name
            return ["member", name, [kind.__module__, kind.__qualname__]]
        if kind in (torch.Tensor, torch.nn.Parameter):
            self._look(value)
            away, trained = value.device.type != "cpu", _is_trained(value)
            return ["tensor", value.detach().clone().cpu(), away, trained]
        if isinstance(value, (np.ndarray, np.generic)):
            return ["array", self._array(np.array(value)), isinstance(value, np.generic)]
        if kind in _ROWS.values() or _is_named(kind):
            row = sorted(value, key=repr) if kind is set else [*value]
            return [
                "tuple" if _is_named(kind) else kind.__name__,
                self._row(row),
                getattr(value, "maxlen", None),
            ]
        if kind in _MAPS.values() and all(type(key) in _SINGLE for key in value):
            maker = getattr(getattr(value, "default_factory", None), "__name__", None)
            return [kind.__name__, [[key, self.of(one)] for key, one in value.items()], maker]
        raise Unpackable

    def _row(self, row: list[Any]) -> Any:
        """Tensors of one kind as one, because an archive has a file for each tensor."""
        if len(row) < 2 or any(type(one) is not torch.Tensor for one in row):
            return [self.of(one) for one in row]
        if any(_kind(one) != _kind(row[0]) for one in row) or _is_trained(row[0]):
            return [self.of(one) for one in row]
        self._take(len(row))
        for one in row:
            self._look(one)
        return ["stack", torch.stack(row).detach().cpu(), row[0].device.type != "cpu"]

    def _array(self, array: Any) -> torch.Tensor:
        self._take(1, array.nbytes)
        try:
            return torch.from_numpy(array)
        except (TypeError, ValueError):  # of texts or objects
            raise Unpackable from None

    def _look(self, one: torch.Tensor) -> None:
        if one.layout is not torch.strided or one.is_quantized or address(one) in self._elsewhere:
            raise Unpackable
        self._take(0, one.numel() * one.element_size())

    def _take(self, items: int, size: int = 0) -> None:
        self._items -= items
        self._bytes -= size
        if self._items < 0 or self._bytes < 0:
            raise Unpackable


def unpacked(node: Any, device: torch.device) -> Any:
    """The value of a plain form.

    Args:
        node: Its plain form.
        device: The device for tensors that were not on the CPU.
    """
    if not isinstance(node, list):
        return node
    kind, held, how = node[:3]
    if kind == "tensor":
        return held.to(device if how else "cpu", copy=True).requires_grad_(node[3])
    if kind == "member":
        members = imported(*how)
        return members[held] if isinstance(held, str) else members(held)
    if kind == "array":
        array = held.numpy().copy()
        return array[()] if how else array
    if kind in _MAPS:
        items = [(key, unpacked(one, device)) for key, one in held]
        if kind == "defaultdict":
            return defaultdict(_MAKERS.get(how), items)
        return _MAPS[kind](dict(items))
    if held[:1] == ["stack"]:
        _, whole, away = held
        row = [one.clone() for one in whole.to(device if away else "cpu")]
    else:
        row = [unpacked(one, device) for one in held]
    return deque(row, how) if kind == "deque" else _ROWS[kind](row)


def put(new: Any, old: Any) -> Any:
    """The new value; in the old object, which others may reference, if possible."""
    if isinstance(new, torch.Tensor):
        if not (isinstance(old, torch.Tensor) and _is_trained(old) and old.shape == new.shape):
            return new
        with torch.no_grad():  # its optimizer knows the old one
            return old.copy_(new)
    kind = type(new)
    if kind is tuple and _is_named(type(old)):
        return type(old)(*new)
    if kind is not type(old) or kind is tuple:
        return new
    if kind is set:
        old.clear()
        old.update(new)
    elif kind in _ROWS.values():
        kept = [*map(put, new, old)] if len(new) == len(old) else [*new]
        old.clear()
        old.extend(kept)
    elif kind in _MAPS.values():
        known = {key: put(one, old[key]) for key, one in new.items() if key in old}
        old.clear()
        old.update({**new, **known})
    else:
        return new
    return old


def same(one: Any, other: Any) -> bool:
    """Whether two plain forms have the same value."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and one.dtype == other.dtype
            and torch.equal(one, other)
        )
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))


def address(one: torch.Tensor) -> int:
    """The address of its storage, which views of it share; 0 if it has none."""
    try:
        return one.untyped_storage().data_ptr()
    except (RuntimeError, ValueError):  # sparse, or not initialized yet
        return 0


def plain_numbers(value: Any) -> Any:
    """A checkpoint's part with Python's numbers in place of NumPy's, such as a learning rate's."""
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (dict, OrderedDict):
        return type(value)((plain_numbers(key), plain_numbers(one)) for key, one in value.items())
    if type(value) in (list, tuple):
        return type(value)(plain_numbers(one) for one in value)
    return value


def without_tensors(value: Any) -> Any:
    """A checkpoint's part with None in place of its tensors."""
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return None
    if type(value) in (dict, OrderedDict):
        return {key: without_tensors(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return [without_tensors(one) for one in value]
    return value


def _kind(one: torch.Tensor) -> Any:
    return one.shape, one.dtype, one.device, _is_trained(one)


def _is_named(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _is_trained(one: torch.Tensor) -> bool:
    return one.is_leaf and one.requires_grad
