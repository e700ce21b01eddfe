"""What modules and optimizers of PyTorch keep outside their ``state_dict``.

Attributes such as a temperature, which parameters are trained, and buffers that are not saved.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from optuna_deadline.errors import DeadlineError
from optuna_deadline.plain_attributes import PlainAttributes

_logger = logging.getLogger("optuna_deadline")
_FEW = 5  # changed parts
_BUFFER_BYTES = 2**20  # a larger one is no count or mean
_OF_OPTIMIZERS = frozenset({"defaults", "state", "param_groups"})


class ModuleValues:
    """Such values of the modules and optimizers among some objects, as they are at first.

    Args:
        objects: The objects, with the same names in each segment.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._objects = objects
        parts = [part for one in _modules(objects).values() for part in one.modules()]
        known = _of_modules() | _OF_OPTIMIZERS
        self._attributes = PlainAttributes([*parts, *_optimizers(objects).values()], known)
        self._trains = _trains(objects)
        self._buffers = {name: _seen(one) for name, one in _unsaved_buffers(objects)}
        self._kept: set[str] = set()  # names of restored buffers
        self._built = _structure(objects)

    def changed(self) -> dict[str, Any]:
        """What this segment or one before it has changed, as plain data."""
        trains = _trains(self._objects)
        return {
            "attributes": self._attributes.changed(),
            "trains": {name: trains[name] for name in trains if trains != self._trains},
            "buffers": {
                name: one.detach().clone()
                for name, one in _unsaved_buffers(self._objects)
                if name in self._kept or _seen(one) != self._buffers.get(name)
            },
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore :meth:`changed`."""
        self._attributes.restore(saved["attributes"])
        for name, one in _parameters(self._objects):
            one.requires_grad_(saved["trains"].get(name, one.requires_grad))
        if saved["trains"]:
            self._trains = {}  # saved by each later segment too
        self._kept |= saved["buffers"].keys()
        for name, one in _unsaved_buffers(self._objects):
            if name in saved["buffers"]:
                with sys.modules["torch"].no_grad():
                    one.copy_(saved["buffers"][name])

    def warn(self) -> bool:
        """Log what a pause loses; returns whether there is any."""
        return self._attributes.warn()

    def changed_structure(self) -> list[str]:
        """What a new process would not build as it is now."""
        return changed_structure(self._built, _structure(self._objects))


def changed_structure(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The names of parts that were added, removed or changed."""
    names = [*now, *(before.keys() - now.keys())]
    return [name for name in names if now.get(name) != before.get(name)]


def warn_of_structure(changed: Sequence[str], where: str) -> None:
    """Log why a trial stays on its slots.

    Args:
        changed: What a new process would not build.
        where: Where to build it, as in "in __init__".
    """
    _logger.warning(
        "The trial keeps its slots to its end, since it could not resume from here: training has"
        " changed %s, and a new process builds the model and its optimizers as they were. Build"
        " everything %s, and freeze or train it by requires_grad.",
        ", ".join(changed[:_FEW]) + (", ..." if len(changed) > _FEW else ""),
        where,
    )


def warn_of_schedulers(objects: Mapping[str, Any], remedy: str) -> None:
    """Log that a scheduler of a saved optimizer is not saved.

    torch marks the ``step`` of an optimizer that has a scheduler, except a ``ReduceLROnPlateau``.

    Args:
        objects: The objects that checkpoints hold, by name.
        remedy: What to do, as the end of a sentence.
    """
    served = {id(getattr(one, "optimizer", None)) for one in objects.values()}
    for one in _optimizers(objects).values():
        if hasattr(one.step, "_wrapped_by_lr_sched") and id(one) not in served:
            _logger.warning(
                "A scheduler of %s is in no checkpoint and starts again each time that the trial"
                " resumes: %s.",
                type(one).__name__,
                remedy,
            )


def refuse_unsaved(objects: Mapping[str, Any], remedy: str) -> None:
    """Refuse to train what no checkpoint would hold.

    Args:
        objects: The objects that checkpoints hold, by name.
        remedy: What to do, as the end of a sentence.

    Raises:
        DeadlineError: An optimizer trains a parameter of another object.
    """
    known = {id(one) for _, one in _parameters(objects)}
    known |= {id(one) for one in _tensors(objects.values())}
    unsaved = [
        one
        for optimizer in _optimizers(objects).values()
        for group in optimizer.param_groups
        for one in group["params"]
        if id(one) not in known
    ]
    if unsaved:
        shapes = ", ".join(str(tuple(one.shape)) for one in unsaved[:5])
        raise DeadlineError(
            f"An optimizer trains {len(unsaved)} parameters that no checkpoint would hold"
            f" ({shapes}): {remedy}."
        )


def _modules(objects: Mapping[str, Any]) -> dict[str, Any]:
    torch = sys.modules.get("torch")
    found = objects.items() if torch is not None else ()
    return {name: one for name, one in found if isinstance(one, torch.nn.Module)}  # type: ignore[union-attr]


def _optimizers(objects: Mapping[str, Any]) -> dict[str, Any]:
    torch = sys.modules.get("torch")
    found = objects.items() if torch is not None else ()
    return {name: one for name, one in found if isinstance(one, torch.optim.Optimizer)}  # type: ignore[union-attr]


@lru_cache(1)
def _of_modules() -> frozenset[str]:
    torch = sys.modules.get("torch")
    return frozenset() if torch is None else frozenset(vars(torch.nn.Module())) - {"training"}


def _parameters(objects: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, module in _modules(objects).items():
        for inner, one in module.named_parameters():
            yield f"{name}.{inner}", one


def _trains(objects: Mapping[str, Any]) -> dict[str, bool]:
    return {name: one.requires_grad for name, one in _parameters(objects)}


def _unsaved_buffers(objects: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, module in _modules(objects).items():
        buffers = dict(module.named_buffers())
        saved = module.state_dict() if buffers else {}
        for inner, one in buffers.items():
            if inner not in saved and one.numel() * one.element_size() <= _BUFFER_BYTES:
                yield f"{name}.{inner}", one


def _seen(tensor: Any) -> tuple[int, int]:
    return id(tensor), tensor._version


def _structure(objects: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, module in _modules(objects).items():
        for inner, one in module.state_dict().items():
            found[f"{name}.{inner}"] = getattr(one, "shape", None)
    for name, optimizer in _optimizers(objects).items():
        found[name] = [len(group["params"]) for group in optimizer.param_groups]
    return found


def _tensors(values: Iterable[Any]) -> Iterator[Any]:
    for one in values:
        if isinstance(one, (list, tuple)):
            yield from _tensors(one)
        elif isinstance(one, dict):
            yield from _tensors(one.values())
        else:
            yield one
