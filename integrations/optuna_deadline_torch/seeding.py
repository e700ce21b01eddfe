"""Random numbers that depend on the position of training, not on its history.

The state of a random generator in a checkpoint would not help a trial that moves from one to two
processes. Seeds from (seed, epoch, batch, rank) need no state.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

#: A last part of the seed, for reading or moving a batch: its step has other numbers.
READING, MOVING = 1, 2

#: Further parts of every seed within steps, but not of the seeds of orders. A check of a move
#: sets it, to measure the effect of other random numbers.
other_draws: tuple[int, ...] = ()

_KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
#: Not searched: data, and what draws an order or parameters.
_DATA = (torch.Tensor, np.ndarray, str, bytes, int, float, type(None))
_CLOSED = (*_DATA, ModuleType, type, Sampler, DataLoader)
_FOREIGN = {"lightning", "optuna", "optuna_deadline", "pytorch_lightning"}
_DEEP, _LONG, _MANY = 8, 1000, 10_000  # levels, items of a list, and objects in all


def mixed(*parts: int) -> int:
    """A well-mixed 63-bit number from a few small ones, the same in every process."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class Generators:
    """Random generators in objects, such as a dataset that augments.

    They are found once, in the objects' attributes and in those of their parts: datasets within
    datasets, lists of transforms, the variables of functions and those that methods name.

    Args:
        *roots: The objects; samplers among their parts are left alone.
    """

    def __init__(self, *roots: object) -> None:
        self._found = [*_found(roots)]

    def seed(self, *parts: int) -> None:
        """Seed them from ``parts``; each gets other numbers, also than the global ones."""
        for number, find in enumerate(self._found, start=1):
            one, seed = find(), mixed(*parts, -number)
            if isinstance(one, torch.Generator):
                one.manual_seed(seed)
            elif isinstance(one, random.Random):
                one.seed(seed)
            elif isinstance(one, np.random.Generator):
                one.bit_generator.state = _begun(one.bit_generator, seed)
            elif isinstance(one, np.random.RandomState):
                one.set_state(_begun(one._bit_generator, seed))


def generators_of(*samplers: object) -> Generators:
    """Those that samplers hold, which would continue from the last epoch."""
    held = (vars(one).values() for one in samplers if hasattr(one, "__dict__"))
    return Generators([one for values in held for one in values if isinstance(one, _KINDS)])


def reseed(*parts: int, own: Generators | None = None) -> None:
    """Seed Python, NumPy, torch (every device in use) and ``own`` from ``parts``."""
    parts = (*parts, *other_draws)
    seed = mixed(*parts)
    _seed_cpu(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed)
    if own is not None:
        own.seed(*parts)


@contextmanager
def seeded(*parts: int) -> Iterator[int]:
    """Seed the CPU generators from ``parts`` and restore them afterwards."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seed = mixed(*parts)
    _seed_cpu(seed)
    try:
        yield seed
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def _seed_cpu(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


def _global_generators(function: FunctionType) -> Iterator[Callable[[], object]]:
    """Those in global variables that a function names."""
    for name in function.__code__.co_names:
        if isinstance(function.__globals__.get(name), _KINDS):
            yield partial(dict.get, function.__globals__, name)


def _begun(bits: Any, seed: int) -> Any:
    return type(bits)(seed).state


def _found(roots: Iterable[object]) -> Iterator[Callable[[], object]]:
    """The places of generators: one that is replaced in its attribute is found again."""
    known: set[int] = set()
    for root in roots:
        left = deque([(root, 0)])
        while left and len(known) < _MANY:
            one, depth = left.popleft()
            if id(one) in known or isinstance(one, _CLOSED):
                continue
            known.add(id(one))
            for find in _parts(one):
                part = find()
                if not isinstance(part, _KINDS):
                    if depth < _DEEP:
                        left.append((part, depth + 1))
                elif id(part) not in known:
                    known.add(id(part))
                    yield find


def _parts(one: Any) -> Iterator[Callable[[], object]]:
    if isinstance(one, dict):
        if len(one) <= _LONG:
            yield from (partial(dict.get, one, key) for key in one)
    elif isinstance(one, (list, tuple)):
        if len(one) <= _LONG:
            yield from (partial(_same, part) for part in one)
    elif isinstance(one, partial):
        yield from _parts((one.func, one.args, one.keywords))
    elif isinstance(one, MethodType):
        yield partial(_same, one.__self__)
    elif isinstance(one, FunctionType):
        yield from _parts((*(one.__defaults__ or ()), *map(_content, one.__closure__ or ())))
        yield from _global_generators(one)
    elif _package(type(one)) not in _FOREIGN:
        held = getattr(one, "__dict__", None)
        yield from _parts(held) if isinstance(held, dict) else ()
        # PyTorch's own methods draw from its global generator, and name hundreds of variables.
        owners = [each for each in type(one).__mro__ if _package(each) not in {*_FOREIGN, "torch"}]
        for method in (each for owner in owners for each in vars(owner).values()):
            if isinstance(method, FunctionType):
                yield from _global_generators(method)


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _same(one: object) -> object:
    return one


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None
