"""The checkpoint of a plain PyTorch training, with gradients that wait for their step.

With two optimizers, one may accumulate while the other steps. Such gradients are part of the state
to resume from.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from optuna_deadline import plain_data
from optuna_deadline.errors import DeadlineError
from optuna_deadline.module_values import refuse_unsaved, warn_of_schedulers
from optuna_deadline.optimizer_state import whole_state
from optuna_deadline_torch.module_walk import LoopWalk, structure
from optuna_deadline_torch.object_walk import is_metric
from optuna_deadline_torch.packing import plain_numbers, without_tensors
from optuna_deadline_torch.surroundings import Surroundings


class TrainingState:
    """The model and everything else that a checkpoint holds.

    Args:
        model: The bare model.
        others: By name: the optimizer, schedulers, a gradient scaler, averages; lists, dicts,
            arrays, tensors, random generators and objects of plain attributes, which are filled
            in place.
    """

    def __init__(self, model: Any, others: Mapping[str, Any]) -> None:
        for name, one in others.items():
            if is_metric(one):
                raise DeadlineError(
                    f"{name}={type(one).__name__} is a metric, whose sums are divided between the"
                    " slots, so a checkpoint cannot hold them: leave it out, and let it "
                    "start again"
                    " in each segment."
                )
            if not (plain_data.has_state(one) or plain_data.fills_in_place(one)):
                raise DeadlineError(
                    f"{name}={type(one).__name__} has no state_dict() and load_state_dict(),"
                    " and cannot be filled in place as a list, a dict or a tensor can: leave it"
                    " out, give it both, or keep it in a dict."
                )
        self.model = model
        self._others = dict(others)
        watch(self.optimizers)

    def walk(self, around: Surroundings, loaders: Sequence[Any]) -> LoopWalk:
        """All that training may change and no object saves itself.

        Args:
            around: The function around the loop.
            loaders: The loaders of the epoch.
        """
        return LoopWalk(self.model, self._others, around, loaders)

    @property
    def structure(self) -> dict[str, Any]:
        """What the parts of a checkpoint must fit, by name."""
        return structure(self.model, self.optimizers)

    @property
    def trained(self) -> tuple[bool, ...]:
        """Whether each parameter of the model is trained."""
        return tuple([one.requires_grad for one in self.model.parameters()])

    @property
    def foreign(self) -> list[torch.Tensor]:
        """What the optimizers train beside the model."""
        own = set(map(id, self.model.parameters()))
        return [one for one in _stepped(self.optimizers) if id(one) not in own]

    def refuse_unsaved(self) -> None:
        """Refuse to train what no checkpoint would hold.

        Raises:
            DeadlineError: An optimizer trains a parameter of an object that is not passed.
        """
        refuse_unsaved(
            {"": self.model, **self._others},
            "pass their module to ElasticLoop by a name of its own, as criterion=criterion, or let"
            " it be a part of the model",
        )

    def warn_of_schedulers(self) -> None:
        """Warn if a scheduler is not among the states."""
        warn_of_schedulers(self._others, "pass it, as in ElasticLoop(..., scheduler=scheduler)")

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """All optimizers."""
        return [one for one in self._others.values() if isinstance(one, torch.optim.Optimizer)]

    @property
    def saved(self) -> list[Any]:
        """The model and the other states."""
        return [self.model, *self._others.values()]

    @property
    def objects(self) -> list[Any]:
        """The model and what has a state of its own."""
        return [one for one in self.saved if one is self.model or plain_data.has_state(one)]

    def capture(self, position: Mapping[str, Any]) -> dict[str, Any]:
        """The whole present state; training may change it later."""
        weights = self.model.state_dict()
        for name, one in weights.items():
            if not isinstance(one, torch.Tensor):  # a module's extra state
                weights[name] = plain_numbers(one)
        return {
            "state_dict": weights,
            "states": {name: _state_of(name, one) for name, one in self._others.items()},
            "gradients": waiting(self.model, self.optimizers) | kept(self.model, self.optimizers),
            "optuna_deadline": dict(position),
        }

    def check(self) -> None:
        """Refuse before training what no checkpoint could be read with.

        Raises:
            DeadlineError: A state holds more than plain data.
        """
        buffer = io.BytesIO()
        torch.save(without_tensors(self.capture({})), buffer)
        buffer.seek(0)
        read(buffer)

    def open(self, path: Path) -> dict[str, Any]:
        """Restore the plain data alone, which code may read; returns the position.

        Code before the first epoch draws, copies and sets as it did in the first segment, so
        other objects have their states back only when it has run.
        """
        return self._load(read(path, mmap=True), plain_data.is_data)

    def load(self, path: Path) -> None:
        """Restore :meth:`capture`."""
        checkpoint = read(path)
        self._load(checkpoint, lambda _: True)
        self.model.load_state_dict(checkpoint["state_dict"])
        put_back(self.model, self.optimizers, checkpoint["gradients"])

    def _load(
        self, checkpoint: Mapping[str, Any], wanted: Callable[[Any], bool]
    ) -> dict[str, Any]:
        missing = self._others.keys() ^ checkpoint["states"].keys()
        if missing:
            raise DeadlineError(
                f"The trial's checkpoint and its objective differ in {', '.join(sorted(missing))}:"
                " pass the same objects to ElasticLoop in every segment."
            )
        for name, one in self._others.items():
            if not wanted(one):
                continue
            found = checkpoint["states"][name]
            plain_data.put_back(
                one, found if plain_data.has_state(one) else plain_data.decoded(found)
            )
        position: dict[str, Any] = checkpoint["optuna_deadline"]
        return position


def _state_of(name: str, one: Any) -> Any:
    """Its own state, as it is; the saver looks at it when it is written."""
    if plain_data.has_state(one):
        return plain_numbers(whole_state(one))
    return plain_data.state_of(name, one)


def read(path: Path | io.BytesIO, *, mmap: bool = False) -> dict[str, Any]:
    """Read a checkpoint into the host's memory.

    Raises:
        DeadlineError: It holds more than plain data.
    """
    try:
        # Plain data only: other processes read a checkpoint to load the best model.
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        raise DeadlineError(
            "A state_dict() holds something that is not a tensor, a number, a text, or a list or"
            f" dict of these: {str(error).splitlines()[0]}"
        ) from error
    return found


_USED = "_optuna_deadline_used"  # the version of a gradient that a step has used
_STEPPED = "_optuna_deadline_stepped"
_CLEARED = "_optuna_deadline_cleared"  # whether gradients were new at each step of an optimizer


def watch(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Record from now on which gradients a step has used, and whether the next one finds them."""
    for optimizer in optimizers:
        optimizer.register_step_pre_hook(_note_cleared)
        optimizer.register_step_post_hook(_note_used)


def trained(
    model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]
) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that optimizers step, by their names in the model."""
    wanted = set(map(id, _stepped(optimizers)))
    for name, parameter in model.named_parameters():
        if id(parameter) in wanted:
            yield name, parameter


def _stepped(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[torch.Tensor]:
    for one in optimizers:
        for group in one.param_groups:
            yield from group["params"]


def waiting(
    model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]
) -> dict[str, torch.Tensor]:
    """The gradients that no step has used yet, by parameter."""
    return held(model, optimizers, lambda gradient: not _is_used(gradient))


def held(
    model: nn.Module,
    optimizers: Iterable[torch.optim.Optimizer],
    wanted: Callable[[torch.Tensor], bool] = lambda _: True,
) -> dict[str, torch.Tensor]:
    """The gradients, by parameter."""
    return {
        name: parameter.grad.detach()
        for name, parameter in trained(model, optimizers)
        if parameter.grad is not None and wanted(parameter.grad)
    }


def kept(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, torch.Tensor]:
    """The gradients that the next backward pass may add to, although a step has used them.

    Those of an optimizer whose gradients were not new at each step. With one step, nothing is
    known of that.
    """
    keeping = [one for one in optimizers if not getattr(one, _CLEARED, False)]
    return held(model, keeping, _is_used)


def put_back(
    model: nn.Module,
    optimizers: Iterable[torch.optim.Optimizer],
    gradients: Mapping[str, torch.Tensor],
) -> None:
    """Restore gradients."""
    for name, parameter in trained(model, optimizers):
        if name in gradients:
            parameter.grad = gradients[name].to(parameter, copy=True)


def _is_used(gradient: torch.Tensor) -> bool:
    return bool(getattr(gradient, _USED, None) == gradient._version)


def _note_cleared(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if not hasattr(optimizer, _STEPPED) or not getattr(optimizer, _CLEARED, True):
        return  # nothing is known yet, or all
    parameters = (one for group in optimizer.param_groups for one in group["params"])
    setattr(optimizer, _CLEARED, not any(hasattr(one.grad, _USED) for one in parameters))


def _note_used(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    setattr(optimizer, _STEPPED, True)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                setattr(parameter.grad, _USED, parameter.grad._version)
