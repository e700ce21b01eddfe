"""A digest of the data that a loader reads, by which a trial notices that it has become another.

No sample is read, since that may draw random numbers, count, or open files. The digest covers
tensors, arrays and lists in the attributes of the user's datasets and of those of torch.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np
import torch

from optuna_deadline.callers import is_installed

_MOST = 64  # items of an array or a list, spread evenly
_DEEP = 5  # objects within objects
_ALL = 20_000  # facts in all: lists of lists of lists have more items than can be looked at
_NUMBERS = (bool, int, float, complex, np.generic)


def data_digest(data: Any, depth: int = _DEEP) -> str:
    """The digest of a dataset, in 16 hexadecimal digits.

    Args:
        data: The dataset.
        depth: How deep objects within objects are looked at.
    """
    digest = hashlib.blake2b(digest_size=8)
    _Digesting(digest).add(data, depth)
    return digest.hexdigest()


class _Digesting:
    def __init__(self, digest: Any) -> None:
        self._digest = digest
        self._seen: set[int] = set()
        self._left = _ALL

    def add(self, value: Any, depth: int) -> None:
        if self._left <= 0:
            return
        if isinstance(value, torch.Tensor):
            if value.layout is torch.strided and not value.is_quantized:
                some = torch.tensor(_some(value.numel()), dtype=torch.long, device=value.device)
                found = torch.take(value.detach(), some).cpu().view(torch.uint8)
                self._note(value.shape, value.dtype, found.numpy().tobytes())
        elif isinstance(value, np.ndarray):
            if not value.dtype.hasobject:
                self._note(value.shape, value.dtype, value.flat[_some(value.size)].tobytes())
        elif type(value) in (list, tuple):
            self._note(len(value))
            for place in _some(len(value)):
                self._item(value[place], depth)
        elif depth and id(value) not in self._seen and _is_data(type(value)):
            self._seen.add(id(value))
            held = value if type(value) is dict else getattr(value, "__dict__", {})
            for name, one in [*held.items()][:_MOST]:
                self._note(str(name))
                self.add(one, depth - 1)

    def _item(self, item: Any, depth: int) -> None:
        if isinstance(item, _NUMBERS):
            self._note(item)
        elif isinstance(item, (str, os.PathLike)):
            self._note(os.path.basename(item))  # the folder may be of one process
        elif depth:
            self.add(item, depth - 1)

    def _note(self, *facts: Any) -> None:
        self._left -= len(facts)
        for fact in facts:
            self._digest.update(fact if isinstance(fact, bytes) else repr(fact).encode())


def _is_data(kind: type) -> bool:
    module = kind.__module__
    return kind is dict or module.startswith("torch.utils.data") or not is_installed(module)


def _some(count: int) -> list[int]:
    return sorted({round(place) for place in np.linspace(0, count - 1, _MOST)}) if count else []
