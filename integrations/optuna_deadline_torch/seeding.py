"""Random numbers that depend on where training is, not on how it got there.

The state of a random generator in a checkpoint would be of no use to a trial that moves from one
to two processes. Seeds derived from (seed, epoch, batch, rank) need none.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

#: A last part of the seed, for what reads a batch or moves it: its step has numbers of its own.
READING, MOVING = 1, 2

#: More parts of every seed within steps, and of none that an order is drawn from. A check of a
#: move sets it, to see how much of a difference other draws make.
other_draws: tuple[int, ...] = ()


def mixed(*parts: int) -> int:
    """A well-mixed 63-bit number from a few small ones, the same in every process."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def reseed(*parts: int) -> None:
    """Seed Python, NumPy and torch (every device in use) from ``parts``."""
    seed = mixed(*parts, *other_draws)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed)


@contextmanager
def seeded(*parts: int) -> Iterator[int]:
    """Seed the CPU generators from ``parts`` and put them back afterwards."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seed = mixed(*parts)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    try:
        yield seed
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
