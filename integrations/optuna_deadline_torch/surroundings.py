"""What the function around a loop can reach, before it asks for batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from optuna_deadline.callers import users_frame
from optuna_deadline_torch.user_code import UserCode, is_of_any_library

_OF_LOADER = ".dataset"
_DEEP = 3  # containers and objects within each other
_FEW = 64  # items of a container; more are data


@dataclass(frozen=True)
class Surroundings:
    """The function around a loop.

    Attributes:
        datasets: Map-style datasets in its variables, each by one name. They are found in loaders,
            in containers and in objects of the user's, too.
        code: Its code, with the global variables of its file; none before the loop begins.
        classes: Those of all objects there, libraries' among them.
    """

    datasets: Mapping[str, Any] = field(default_factory=dict)
    code: tuple[tuple[CodeType, dict[str, Any]], ...] = ()
    classes: tuple[type, ...] = ()

    @classmethod
    def of_caller(cls) -> Surroundings:
        """Those of the innermost running function of the user's."""
        frame = users_frame()
        if frame is None:
            return cls()
        reached = list(_reached(frame))
        # Each by the first of its names.
        datasets = {id(one): (name, one) for name, one in reversed(reached) if _is_data(name, one)}
        classes = dict.fromkeys(type(one) for _, one in reached)
        return cls(
            dict(reversed(datasets.values())), ((frame.f_code, frame.f_globals),), tuple(classes)
        )


def _is_data(name: str, one: Any) -> bool:
    known = isinstance(one, Dataset) or name.endswith(_OF_LOADER)
    return known and not isinstance(one, IterableDataset)


def _reached(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Variables, and parts of containers, loaders and objects of the user's in them."""
    named = UserCode().variables(frame.f_code, frame.f_globals)
    variables = {name: held[name] for held, name in named} | frame.f_locals
    left = deque((name, one, 0) for name, one in variables.items())
    while left:
        name, one, depth = left.popleft()
        yield name, one
        if isinstance(one, DataLoader):
            yield f"{name}{_OF_LOADER}", one.dataset
        elif depth < _DEEP and not isinstance(one, Dataset):
            left += [(f"{name}{key}", part, depth + 1) for key, part in _parts(one)]


def _parts(one: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(one, (list, tuple, dict)):
        few = one if len(one) <= _FEW else ()
        items = few.items() if isinstance(few, dict) else enumerate(few)
        yield from ((f"[{key!r}]", part) for key, part in items)
    elif not isinstance(one, type) and not is_of_any_library(type(one)):
        yield from ((f".{key}", part) for key, part in getattr(one, "__dict__", {}).items())
