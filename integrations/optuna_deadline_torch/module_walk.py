"""A walk over what a model, its optimizers and its data keep outside their states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Sampler, Subset, SubsetRandomSampler, WeightedRandomSampler

from optuna_deadline_torch.object_walk import ObjectWalk, Place, fill, is_metric, nothing
from optuna_deadline_torch.packing import Unpackable, address, packed
from optuna_deadline_torch.sampler import ElasticBatchSampler
from optuna_deadline_torch.surroundings import Surroundings
from optuna_deadline_torch.user_code import CALLABLES, UserCode

#: The functions that are called in the passes of a module and of a parameter.
_OF_PASSES = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
_OF_GRADIENTS = "_backward_hooks", "_post_accumulate_grad_hooks"
_OF_OPTIMIZERS = frozenset({"defaults", "state", "param_groups"})
_BUFFER_BYTES = 2**20
#: Where a training may choose the samples of an epoch.
_CHOICES: dict[Any, str] = {
    Subset: "indices", SubsetRandomSampler: "indices", WeightedRandomSampler: "weights",
}  # fmt: skip


class ModuleWalk(ObjectWalk):
    """Values of modules, optimizers and loaders."""

    def _saved_elsewhere(self, module: nn.Module) -> None:
        """Note what a checkpoint has in the state of a module; before anything is added."""
        tensors = (*module.parameters(), *module.buffers())
        self._elsewhere |= {address(one) for one in tensors} - {0}
        self._seen |= {id(part) for part in module.modules()}

    def _module(
        self,
        module: nn.Module,
        modes: Mapping[str, bool],
        *,
        prefix: str = "",
        saves: bool = False,
    ) -> None:
        """Add what the ``state_dict`` of the trained module leaves out.

        Args:
            module: The module.
            modes: By part, whether it trains, where an evaluation has changed that.
            prefix: Of the names.
            saves: Whether the user saves values himself.
        """
        for name, parameter in module.named_parameters():
            node, trains = parameter.requires_grad, partial(setattr, parameter, "requires_grad")
            self.places[f"{prefix}{name}.requires_grad"] = Place(node, node, trains)
            self._hooks(prefix + name, parameter, _OF_GRADIENTS)
        buffers = dict(module.named_buffers())
        kept = module.state_dict() if buffers else {}
        for name, buffer in buffers.items():
            if name not in kept:
                self._elsewhere.discard(address(buffer))
                node = self._packed(buffer, _BUFFER_BYTES)
                self.places[prefix + name] = Place(node, None, partial(fill, buffer))
        for name, part in module.named_modules():
            path, node = prefix + name, modes.get(name, part.training)
            self.places[f"{path}.training"] = Place(node, node, partial(setattr, part, "training"))
            self._hooks(path, part, _OF_PASSES)
            if not is_metric(part):
                self._attributes(path, part, self.of_modules, saves=saves)

    def _hooks(self, key: str, one: nn.Module | torch.Tensor, kinds: Sequence[str]) -> None:
        for kind in kinds:
            for place, hook in enumerate((getattr(one, kind, None) or {}).values()):
                self._value(f"{key}.{kind}[{place}]", hook, nothing, 0)

    def _optimizers(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        for place, one in enumerate(optimizers):
            self._attributes(f"optimizer {place}", one, _OF_OPTIMIZERS)

    def _loaders(self, loaders: Sequence[Any]) -> None:
        """Add what the user's datasets, samplers and functions of training's loaders count."""
        for place, loader in enumerate(loaders):
            names = "collate_fn", "sampler", "batch_sampler", "dataset"
            self._parts({f"loader {place}.{name}": getattr(loader, name, None) for name in names})

    def _parts(self, named: Mapping[str, Any]) -> None:
        """Add parts of loaders; the last one first: a sampler may hold the dataset too."""
        self._data = True
        parts = list(named.items())
        while parts:
            key, one = parts.pop()
            if isinstance(one, ElasticBatchSampler):
                sampler = getattr(one.batches, "sampler", None)
                parts += [(key, one.batches), (f"{key}.sampler", sampler)]
            elif isinstance(one, CALLABLES):
                self._called(key, one, 0)
            elif one is not None and id(one) not in self._seen:
                self._part(key, one)
                within = [getattr(one, "dataset", None), *getattr(one, "datasets", ())]
                parts += [(f"{key}.{nth}", part) for nth, part in enumerate(within)]

    def _part(self, key: str, one: Any) -> None:
        """Add a dataset or a sampler."""
        if isinstance(one, Sampler) or self._has_attributes(one):
            self._attributes(key, one)


class LoopWalk(ModuleWalk):
    """The values of a training in a loop of the user's own.

    Args:
        model: The bare model.
        others: By name, what else has a state of its own.
        around: The function around the loop.
        loaders: The loaders of the epoch, if it has begun.

    Attributes:
        choices: The names of the values that choose the samples of an epoch. They may follow from
            weights that training changes within it.
    """

    def __init__(
        self,
        model: nn.Module,
        others: Mapping[str, Any],
        around: Surroundings,
        loaders: Sequence[Any],
    ) -> None:
        super().__init__(UserCode(model))
        self.choices: set[str] = set()
        optimizers = [one for one in others.values() if isinstance(one, torch.optim.Optimizer)]
        modules = {f"{name}.": one for name, one in others.items() if isinstance(one, nn.Module)}
        modules[""] = model
        for one in modules.values():
            self._saved_elsewhere(one)
        self._seen |= set(map(id, others.values()))
        for prefix, one in modules.items():
            self._module(one, {}, prefix=prefix)
        self._optimizers(optimizers)
        for name, one in others.items():
            if isinstance(one, LRScheduler):
                self._functions(name, vars(one))
        self._parts({f"data {name}": one for name, one in around.datasets.items()})
        self._loaders(loaders)
        for kind in around.classes:
            self._class(kind)
        self._code += around.code
        self._globals()

    def _functions(self, key: str, held: Mapping[str, Any]) -> None:
        """Add what the functions of a scheduler keep, as of a ``LambdaLR``."""
        for name, value in held.items():
            for place, one in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(one, CALLABLES):
                    self._called(f"{key}.{name}[{place}]", one, 0)

    def _part(self, key: str, one: Any) -> None:
        super()._part(key, one)
        for kind, name in _CHOICES.items():
            if isinstance(one, kind):
                with suppress(TypeError, ValueError, RuntimeError, Unpackable):
                    node = packed(_as_tensor(getattr(one, name)))
                    choice = f"{key}.{name}"
                    self.places[choice] = Place(node, None, partial(_choose, one, name))
                    self.choices.add(choice)


def _as_tensor(choice: Any) -> torch.Tensor:
    # By NumPy, which reads a list of numbers much faster than torch.
    return choice if isinstance(choice, torch.Tensor) else torch.from_numpy(np.asarray(choice))


def _choose(one: Any, name: str, value: torch.Tensor) -> None:
    old = getattr(one, name)
    if not torch.equal(_as_tensor(old), value):  # else it stays a range, for example
        setattr(one, name, value if isinstance(old, torch.Tensor) else value.tolist())


def structure(
    module: nn.Module, optimizers: Iterable[torch.optim.Optimizer], *, groups: bool = True
) -> dict[str, Any]:
    """What the parts of a checkpoint must fit, by name.

    Args:
        module: The trained module.
        optimizers: Its optimizers.
        groups: Whether the groups of their parameters are part of it.
    """
    found: dict[str, Any] = {
        name: getattr(one, "shape", None) for name, one in module.state_dict().items()
    }
    first: dict[int, str] = {}
    for name, part in module.named_modules(remove_duplicate=False):
        found[f"the name {name}"] = first.setdefault(id(part), name)  # of one with several names
        found[f"the class of {name}"] = type(part)
    for place, optimizer in enumerate(optimizers):
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        found[f"optimizer {place}"] = type(optimizer), groups and sizes
    return found
