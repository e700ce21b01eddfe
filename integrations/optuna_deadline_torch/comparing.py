"""The distance of two checkpoints of one training, and that of repeated runs."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from optuna_deadline.checking.distance import (
    apart,
    file_distance,
    leaves,
    loop_distance,
    loops_apart,
    packed_distance,
)
from optuna_deadline_torch import seeding

#: Parts of a checkpoint, of a loop's and of Lightning's, that determine further training.
_WEIGHTS = "state_dict"
_SINGLE = torch.finfo(torch.float32).eps
_LIGHTNING = {"optimizer_states": "optimizer", "lr_schedulers": "schedules"}


def compare(one: Path, other: Path) -> dict[str, Any]:
    """The relative gap of each part, and differences that have no number.

    Args:
        one: The checkpoint of the undisturbed training.
        other: Another one's, at the same step.

    Returns:
        ``parts``, by name: the norm of the difference of all its tensors, relative to the norm of
        the tensors, or the largest relative gap of its numbers if that is more; ``unlike``, a list
        of texts; and ``grows``, whether the batch grows with the slots.
    """
    if (of_folders := packed_distance(one, other, _READERS)) is not None:
        return of_folders
    try:
        left, right = _read(one), _read(other)
    except Exception:  # whatever wrote it: a segment's own file can be of any kind
        return loop_distance(one, other) or file_distance(one, other)
    if (of_loops := loops_apart(left, right)) is not None:
        return of_loops
    first, second = _parts(left), _parts(right)
    gaps = {name: apart(first[name], second.get(name)) for name in first}
    grows = bool(left.get("optuna_deadline", {}).get("scaling"))
    return {"parts": gaps, "unlike": list(_unlike(left, right)), "grows": grows}


def draw_otherwise(number: int) -> Callable[[], float]:
    """Give each step of this process other random numbers, in the same order of samples.

    Args:
        number: From 1: which other ones.
    """
    seeding.other_draws = (number,)
    return lambda: _SINGLE


def round_otherwise(number: int) -> Callable[[], float]:
    """Change the last digit of each weight after each step, as another order of sums does.

    If modules compute in lower than single precision (``torch.autocast``, or weights that are
    ``bfloat16`` or ``float16``), the last digit of their outputs is changed instead.

    Args:
        number: From 1: the seed of the changes.

    Returns:
        A function to call at the end: the coarsest relative last digit that was seen.
    """
    draws = torch.Generator().manual_seed(number)
    coarsest = _SINGLE

    def otherwise(one: torch.Tensor) -> torch.Tensor:
        signs = torch.rand(one.shape, generator=draws).sub_(0.5).sign_()
        return torch.finfo(one.dtype).eps / 2 * one.detach().abs() * signs.to(one)

    def nudge(optimizer: Any, *_: Any) -> None:
        with torch.no_grad():
            for group in optimizer.param_groups:
                for weights in group["params"]:
                    fine = weights.is_floating_point() and _digit(weights) <= _SINGLE
                    if fine and weights.grad is not None:
                        weights.add_(otherwise(weights))

    def nudge_coarse(module: Any, given: Any, output: Any) -> Any:
        nonlocal coarsest
        trained = _is_tensor(output) and output.requires_grad and output.is_floating_point()
        if not trained or _digit(output) <= _SINGLE:
            return None
        coarsest = max(coarsest, _digit(output))
        return output + otherwise(output)

    register_optimizer_step_post_hook(nudge)
    register_module_forward_hook(nudge_coarse)
    return lambda: coarsest


def _digit(one: torch.Tensor) -> float:
    return torch.finfo(one.dtype).eps


def _read(path: Path) -> dict[str, Any]:
    # The file is the user's own, written a moment ago.
    found = torch.load(path, map_location="cpu", weights_only=False)
    return found if isinstance(found, dict) else {_WEIGHTS: found}


def _tensors(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)


def _safetensors(data: bytes) -> Any:
    from safetensors.torch import load

    return load(data)


#: By the suffixes of files in a folder.
_READERS = {**dict.fromkeys((".pt", ".pth", ".bin"), _tensors), ".safetensors": _safetensors}


def _parts(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    parts = {"weights": checkpoint.get(_WEIGHTS)}
    if parts["weights"] is None:  # a file that the user's code wrote
        return {"weights": dict(checkpoint)}
    parts |= {name: checkpoint[key] for key, name in _LIGHTNING.items() if key in checkpoint}
    parts |= checkpoint.get("states", {})
    if "callbacks" in checkpoint:  # their tensors; their numbers may be seconds
        named = _without_files(checkpoint["callbacks"])
        tensors = {key: one for key, one in leaves(named) if isinstance(one, np.ndarray)}
        parts["callbacks"] = tensors
    return parts


def _without_files(tree: Any) -> Any:
    """The same with the state of each ModelCheckpoint without file paths.

    Its best scores are stored by path, and paths differ. Lightning does not restore its current
    score, which the next validation sets.
    """
    if not isinstance(tree, Mapping):
        return tree
    if "best_k_models" in tree:
        scores = sorted(tree["best_k_models"].values(), key=float)
        return {"best": scores, "worst of them": tree.get("kth_value")}
    return {key: _without_files(one) for key, one in tree.items()}


def _is_tensor(one: Any) -> bool:
    return isinstance(one, torch.Tensor)


def _unlike(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    left, right = one.get("optuna_deadline", {}), other.get("optuna_deadline", {})
    for where in ("position", "reported"):
        if left.get(where) != right.get(where):
            yield f"it is at {where} {right.get(where)}, and undisturbed at {left.get(where)}"
    if _dealt(left) != _dealt(right):
        yield "it has seen other batches of the epoch"


def _dealt(state: Mapping[str, Any]) -> list[Any]:
    return [loader["dealt"] for loader in (state.get("order") or {}).get("loaders", [])]
