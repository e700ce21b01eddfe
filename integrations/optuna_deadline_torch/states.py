"""The checkpoint of a plain PyTorch training, with gradients that wait for their step.

With two optimizers, one may accumulate while the other steps. Such gradients are part of the state
to resume from.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from optuna_deadline import plain_data
from optuna_deadline.errors import DeadlineError
from optuna_deadline.optimizer_state import whole_state


class TrainingState:
    """The model and everything else that a checkpoint holds.

    Args:
        model: The bare model.
        others: By name: the optimizer, schedulers, a gradient scaler, averages; lists, dicts,
            arrays, tensors and random generators, which are filled in place.
    """

    def __init__(self, model: Any, others: Mapping[str, Any]) -> None:
        for name, one in others.items():
            if any(base.__module__.startswith("torchmetrics") for base in type(one).__mro__):
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

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """All optimizers."""
        return [one for one in self._others.values() if isinstance(one, torch.optim.Optimizer)]

    @property
    def objects(self) -> list[Any]:
        """The model and what has a state of its own."""
        return [self.model, *[one for one in self._others.values() if plain_data.has_state(one)]]

    def capture(self, position: Mapping[str, Any]) -> dict[str, Any]:
        """The whole present state; training may change it later."""
        return {
            "state_dict": self.model.state_dict(),
            "states": {name: _state_of(name, one) for name, one in self._others.items()},
            "gradients": waiting(self.model, self.optimizers) | kept(self.model, self.optimizers),
            "optuna_deadline": dict(position),
        }

    def load(self, path: Path) -> dict[str, Any]:
        """Restore :meth:`capture`; returns the position that it was given."""
        checkpoint = read(path)
        missing = self._others.keys() ^ checkpoint["states"].keys()
        if missing:
            raise DeadlineError(
                f"The trial's checkpoint and its objective differ in {', '.join(sorted(missing))}:"
                " pass the same objects to ElasticLoop in every segment."
            )
        self.model.load_state_dict(checkpoint["state_dict"])
        for name, one in self._others.items():
            found = checkpoint["states"][name]
            plain_data.put_back(
                one, found if plain_data.has_state(one) else plain_data.decoded(found)
            )
        put_back(self.model, self.optimizers, checkpoint["gradients"])
        position: dict[str, Any] = checkpoint["optuna_deadline"]
        return position


def _state_of(name: str, one: Any) -> Any:
    """Its own state, as it is; the saver looks at it when it is written."""
    return whole_state(one) if plain_data.has_state(one) else plain_data.state_of(name, one)


def read(path: Path, *, mmap: bool = False) -> dict[str, Any]:
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
    groups = (group for one in optimizers for group in one.param_groups)
    wanted = {id(parameter) for group in groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        if id(parameter) in wanted:
            yield name, parameter


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
