"""The datasets that a function of the user's can reach, before it asks for their batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from optuna_deadline_torch.user_code import is_of_any_library

_DEEP = 3  # containers and objects within each other
_FEW = 64  # items of a container; more are data


def datasets_of(frame: FrameType | None) -> dict[str, Any]:
    """Map-style datasets in the variables of a running function, each by one name.

    They are found in loaders, in containers and in objects of the user's, too.
    """
    left = deque(() if frame is None else [(name, one, 0) for name, one in _variables(frame)])
    found: dict[int, tuple[str, Any]] = {}
    while left:
        name, one, depth = left.popleft()
        if isinstance(one, DataLoader):
            name, one = f"{name}.dataset", one.dataset
        elif not isinstance(one, Dataset):
            if depth < _DEEP:
                left += [(f"{name}{key}", part, depth + 1) for key, part in _parts(one)]
            continue
        if not isinstance(one, IterableDataset):
            found.setdefault(id(one), (name, one))
    return dict(found.values())


def _variables(frame: FrameType) -> Iterator[tuple[str, Any]]:
    yield from frame.f_locals.items()
    for name in frame.f_code.co_names:  # of the file, among others
        if name in frame.f_globals:
            yield name, frame.f_globals[name]


def _parts(one: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(one, (list, tuple, dict)):
        items = one.items() if isinstance(one, dict) else enumerate(one)
        yield from ((f"[{key!r}]", part) for key, part in items if len(one) <= _FEW)
    elif not isinstance(one, type) and not is_of_any_library(type(one)):
        yield from ((f".{key}", part) for key, part in getattr(one, "__dict__", {}).items())
