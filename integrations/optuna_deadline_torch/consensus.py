"""Agreement of all ranks on one decision per step, and a check that they train one model.

Directives reach ranks at different times, and SIGTERM may reach only one of them; a rank that left
alone would hang the others. So rank 0 sends its newest directive, every rank its SIGTERM flag, and
all ranks follow the maximum, by one small all-reduce.

Each rank steps by itself and has the same parameters only as long as all step with the same
gradients and learning rates. A forward pass beside the wrapped model, or a scheduler that watches
a rank's own loss, breaks that without an error, and a checkpoint would then be of one rank's
model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import ReduceLROnPlateau

from optuna_deadline.directives import KEEP, Directive, Kind

_ORDER = (Kind.KEEP, Kind.RESIZE, Kind.PAUSE, Kind.STOP)
_CODE = {kind: code for code, kind in enumerate(_ORDER)}


@dataclass(frozen=True)
class StepDecision:
    """What every rank does at this step."""

    directive: Directive
    save: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether all continue, and nothing is saved."""
        return self is _GO_ON or not (self.save or self.directive.leave)

    def staying(self) -> StepDecision:
        """This decision for a trial that could not resume here: only a stop ends it."""
        stays = self.directive.leave and self.directive.kind is not Kind.STOP
        return replace(self, directive=KEEP) if stays else self


_GO_ON = StepDecision(KEEP)  # of nearly every step


class Consensus:
    """The part of one rank in the decisions.

    Args:
        rank: Of this process; the directive and the wish to save are rank 0's.
        world_size: The number of ranks; one decides without communication.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self._group: Any = None

    def connect(self) -> None:
        """Create the process group; every rank calls it once, when the ranks are connected."""
        if self.world_size > 1:
            # CPU tensors through gloo: NCCL would synchronise the GPU at each step.
            gloo = dist.get_backend() == "gloo"
            self._group = dist.group.WORLD if gloo else dist.new_group(backend="gloo")

    def barrier(self) -> None:
        """Wait for the other ranks: one that leaves while another writes would end it."""
        if self.world_size > 1:
            dist.barrier(group=self._group)

    def mean(self, *numbers: float) -> list[float]:
        """The mean over the ranks of each number; every rank calls it at the same steps."""
        if self.world_size == 1:
            return [*numbers]
        voice = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(voice, group=self._group)
        return [float(number) / self.world_size for number in voice]

    def all_equal(self, number: int) -> bool:
        """Whether all ranks have the same 63-bit number; every rank calls it."""
        if self.world_size == 1:
            return True
        voice = torch.tensor([number, -number], dtype=torch.int64)
        dist.all_reduce(voice, op=dist.ReduceOp.MAX, group=self._group)
        most, least = voice.tolist()
        return bool(most == -least)

    def gather(self, own: Any) -> list[Any]:
        """The values of all ranks, as CPU tensors; every rank calls it at the same steps."""
        if self.world_size == 1:
            return [own]
        everyone: list[Any] = [None] * self.world_size
        dist.all_gather_object(everyone, own, group=self._group)
        return everyone

    def agree(self, newest: Directive, *, terminated: bool, save: bool) -> StepDecision:
        """Agree on what to do now; every rank calls it at the same steps.

        Args:
            newest: The newest directive that this rank knows.
            terminated: Whether this rank has received SIGTERM.
            save: Whether this rank wants a checkpoint.
        """
        if self.world_size == 1 and newest is KEEP and not (terminated or save):
            return _GO_ON
        if self.world_size > 1:
            leads = self.rank == 0
            voice = torch.tensor(
                [
                    _CODE[newest.kind] if leads else 0,
                    newest.seq if leads else 0,
                    int(terminated),
                    int(save and leads),
                ],
                dtype=torch.int64,
            )
            dist.all_reduce(voice, op=dist.ReduceOp.MAX, group=self._group)
            code, seq, anyone, wanted = (int(number) for number in voice.tolist())
            terminated, save = bool(anyone), bool(wanted)
            if not leads and (newest.seq, newest.kind) != (seq, _ORDER[code]):
                newest = Directive(_ORDER[code], "as rank 0 was told", seq)
        if terminated and newest.kind is not Kind.STOP:
            newest = Directive(Kind.PAUSE, "the process was asked to terminate", newest.seq)
        return StepDecision(newest, save)


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SCHEDULER = (
    "step a scheduler such as ReduceLROnPlateau with a value that all slots share, such as one of"
    " the whole validation set, and not with a loss that each has of its own part of a batch"
)


@dataclass(frozen=True)
class ReplicatedState:
    """The state that must be equal in all ranks.

    Buffers may differ: at each step ``DistributedDataParallel`` copies the first rank's to all, as
    a checkpoint does.

    Args:
        parameters: Of the bare model.
        optimizers: Of the model.
        remedy: What to do if parameters differ, as the end of a sentence.
        schedulers: Of the learning rates; other checkpointed objects are ignored.
    """

    parameters: Iterable[torch.Tensor]
    optimizers: Iterable[torch.optim.Optimizer]
    remedy: str
    schedulers: Iterable[Any] = ()

    def difference(self, consensus: Consensus) -> str | None:
        """The difference of the ranks, in words; None if they agree. Every rank calls it."""
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
    """A hash of tensors' bits, computed on their device."""
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
