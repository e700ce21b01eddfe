"""Names of regimes: what decides how long a step of a training takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from optuna_deadline.segments import MAX_REGIME

_NODES = 100  # of a graph, from the loss on


def regime_name(loaders: Iterable[Any], accumulated: int = 1, precision: str = "") -> str:
    """A name from batches and precision, as in ``"batch 64 x 2, bfloat16"``.

    Args:
        loaders: Loaders or samplers with the global batch; others say nothing.
        accumulated: Batches of one optimizer step.
        precision: What the forward pass computes in.
    """
    sizes = [getattr(loader, "batch_size", None) for loader in loaders]
    batch = "+".join(str(size) for size in sizes if isinstance(size, int))
    times = f" x {accumulated}" if accumulated > 1 else ""
    return ", ".join(filter(None, [f"batch {batch or '?'}{times}", precision]))[:MAX_REGIME]


def precision_of(loss: torch.Tensor) -> str:
    """The shortest floating-point type in which a loss was computed, under autocast too."""
    kinds, nodes, seen = [loss.dtype], [loss.grad_fn], set[Any]()
    while nodes and len(seen) < _NODES:
        node = nodes.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        kinds += [one.dtype for one in getattr(node, "_input_metadata", ())]
        nodes += [before for before, _ in node.next_functions]
    floats = [kind for kind in kinds if kind.is_floating_point]
    return str(min(floats, key=lambda kind: kind.itemsize)).removeprefix("torch.")
