"""The whole state of an object, with what optimizers of PyTorch leave out of theirs, or cast.

An optimizer within another, as in SAM, has no part in the outer one's ``state_dict``; and
``load_state_dict`` casts tensors to the kind of their parameter.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

_INNER = "optuna_deadline.inner"  # the key of the states of optimizers within an optimizer


def whole_state(one: Any) -> Any:
    """The ``state_dict`` of an object, with those of optimizers within an optimizer."""
    state, inner = one.state_dict(), _inner(one)
    if not inner:
        return state
    return {**state, _INNER: {name: held.state_dict() for name, held in inner.items()}}


def load_whole_state(one: Any, state: Any) -> None:
    """Restore :func:`whole_state`."""
    if not _is_optimizer(one):
        one.load_state_dict(state)
        return
    inner = state.get(_INNER, {})
    own = {name: held for name, held in state.items() if name != _INNER}
    one.load_state_dict(own)
    restore_kinds(one, own)
    for name, held in _inner(one).items():
        if name in inner:
            load_in_place(held, inner[name])


def restore_kinds(optimizer: Any, saved: Mapping[str, Any]) -> None:
    """Restore the tensors of an optimizer's state that have another kind than the parameters.

    ``load_state_dict`` casts them: NAdam then rounds otherwise, and an optimizer with single
    precision for weights of few digits loses them.
    """
    parameters = _parameters(optimizer)
    for place, state in saved["state"].items():
        mine = optimizer.state[parameters[place]] if place in range(len(parameters)) else {}
        for name, one in state.items():
            held: Any = mine.get(name)
            if _is_tensor(held) and _is_tensor(one) and held.dtype != one.dtype:
                mine[name] = one.to(held.device, copy=True)


def load_in_place(optimizer: Any, saved: Mapping[str, Any]) -> None:
    """Restore an optimizer whose groups another one may share."""
    for group, kept in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        group.update({name: one for name, one in kept.items() if name != "params"})
    parameters = _parameters(optimizer)
    for place, state in saved["state"].items():
        parameter = parameters[place]
        optimizer.state[parameter] = {
            name: one.to(one.device if name == "step" else parameter.device, copy=True)
            if _is_tensor(one)
            else one
            for name, one in state.items()
        }


def _inner(one: Any) -> dict[str, Any]:
    held = vars(one) if _is_optimizer(one) else {}
    return {name: value for name, value in held.items() if _is_optimizer(value)}


def _parameters(optimizer: Any) -> list[Any]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _is_optimizer(one: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(one, torch.optim.Optimizer)


def _is_tensor(one: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(one, torch.Tensor)
