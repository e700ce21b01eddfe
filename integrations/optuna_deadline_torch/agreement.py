"""That the ranks of a segment still train one model.

Each rank steps by itself, and has the same parameters only as long as all step with the same
gradients and learning rates. A forward pass beside the wrapped model, or a scheduler that watches
a rank's own loss, ends that without an error; a checkpoint would then be of one rank's model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from optuna_deadline_torch.consensus import Consensus

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SCHEDULER = (
    "step a scheduler such as ReduceLROnPlateau with a value that all slots share, such as one of"
    " the whole validation set, and not with a loss that each has of its own part of a batch"
)


@dataclass(frozen=True)
class Trained:
    """What all ranks must have alike, in one of them.

    Buffers may differ: ``DistributedDataParallel`` gives all ranks the first one's at each step,
    as a checkpoint does.

    Args:
        parameters: Of the bare model.
        optimizers: Of it.
        remedy: What to do where parameters differ, as an end of a sentence.
        schedulers: Of the learning rates; others of what a checkpoint holds may be among them.
    """

    parameters: Iterable[torch.Tensor]
    optimizers: Iterable[torch.optim.Optimizer]
    remedy: str
    schedulers: Iterable[Any] = ()

    def difference(self, consensus: Consensus) -> str | None:
        """In which way the ranks differ, in words; None where they agree. Every rank calls it."""
        rates = [_number(group["lr"]) for one in self.optimizers for group in one.param_groups]
        best = [_number(one.best) for one in self.schedulers if isinstance(one, ReduceLROnPlateau)]
        own = digest(self.parameters), " ".join(rates), " ".join(best)
        digests, all_rates, bests = zip(*consensus.gather(own), strict=True)
        if len({*all_rates}) > 1:
            listed = " and ".join(dict.fromkeys(_first_apart([r.split() for r in all_rates])))
            return f"its slots have come to different learning rates ({listed}): {_SCHEDULER}"
        if len({*bests}) > 1:
            listed = " and ".join(dict.fromkeys(_first_apart([b.split() for b in bests])))
            return (
                f"a ReduceLROnPlateau has watched other values in each slot (at best {listed}):"
                f" {_SCHEDULER}"
            )
        if len({*digests}) > 1:
            return (
                "its slots have come to different parameters, since each has stepped with"
                f" gradients or learning rates of its own: {self.remedy}; and {_SCHEDULER}"
            )
        return None


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """A text that tensors with other bits do not have, computed where they lie."""
    with torch.no_grad():
        sums = [_bits(one).sum(dtype=torch.int64).cpu() for one in tensors]
    return hashlib.blake2b(repr([int(one) for one in sums]).encode(), digest_size=8).hexdigest()


def _bits(one: torch.Tensor) -> torch.Tensor:
    plain = torch.view_as_real(one) if one.is_complex() else one
    return plain.detach().view(_BITS[plain.element_size()])


def _number(rate: Any) -> str:
    return f"{float(rate):.17g}"


def _first_apart(rates: list[list[str]]) -> tuple[str, ...]:
    apart = next(group for group in zip(*rates, strict=True) if len(set(group)) > 1)
    return tuple(f"{float(rate):.6g}" for rate in apart)
