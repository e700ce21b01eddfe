"""Python's garbage collector, where many objects are made that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collecting_later() -> Iterator[None]:
    """Collect no garbage until the ``with`` block ends, unless another thread wants it earlier.

    The first reading of a large study makes objects that all stay. Collections in between would
    find nothing, and take two fifths of its time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def collect_seldom() -> None:
    """Make the garbage collector of a process that only simulates run less often.

    A study keeps nearly all objects until its end, so frequent collections take a fifth of the
    time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
