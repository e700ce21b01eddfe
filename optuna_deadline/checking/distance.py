"""The distance of two checkpoints of one training, by the numbers in them."""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import numpy as np

from optuna_deadline.checking.readers import NUMBERS, READERS, Reader
from optuna_deadline.checking.rows import relative
from optuna_deadline.checkpoints.folders import is_packed
from optuna_deadline.plain_data import decoded, read_plain

_HEAD = 64  # bytes that show a packed folder
_RANDOM = "random numbers"
#: Paths of values that do not belong to the training: times, what was computed by all slots, and
#: what the log has been told.
_BESIDE = re.compile(r"(runtime|_per_second|/total_flos|/told)(/|$)")
#: Files of Trainer that are seeded anew or not trained, and the one that CatBoost dates.
_NO_STATE = ("rng_state", "training_args", "training.snapshot")


def apart(one: Any, other: Any, *, of_files: bool = False) -> float:
    """The relative gap of two trees of arrays and numbers; infinite if they differ in kind.

    It is the norm of the difference of all arrays, relative to their norm, or the largest relative
    gap of the numbers if that is more.

    Args:
        one: A tree.
        other: Another one.
        of_files: Whether a framework wrote them: texts count too, and times do not.
    """

    def counts(key: str, each: Any) -> bool:
        return not _BESIDE.search(key) if of_files else not isinstance(each, str)

    left, right = ({k: v for k, v in leaves(tree) if counts(k, v)} for tree in (one, other))
    if left.keys() != right.keys():
        return math.inf
    gap = length = worst = 0.0
    for key, mine in left.items():
        yours = right[key]
        if isinstance(mine, str) or isinstance(yours, str):
            worst = max(worst, 0.0 if mine == yours else math.inf)
        elif np.ndim(mine):
            if np.shape(mine) != np.shape(yours):
                return math.inf
            first, second = np.asarray(mine, float), np.asarray(yours, float)
            same = (first == second) | (np.isnan(first) & np.isnan(second))
            with np.errstate(invalid="ignore"):  # infinities
                gap += float(np.square(np.where(same, 0.0, first - second)).sum())
            length += float(np.nansum(np.square(first)))
        else:
            worst = max(worst, relative(float(mine), float(yours)))
    if not gap:
        return worst
    return max(worst, math.sqrt(gap / length) if length and math.isfinite(gap) else math.inf)


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The arrays, numbers and texts of a tree by their paths."""
    if isinstance(tree, Mapping):
        for key, part in tree.items():
            yield from leaves(part, f"{path}/{key}")
    elif isinstance(tree, (list, tuple)):
        for index, part in enumerate(tree):
            yield from leaves(part, f"{path}/{index}")
    elif hasattr(tree, "detach"):  # a tensor
        bare = tree.detach().cpu()
        try:
            yield path, bare.numpy()  # which is no copy
        except TypeError:  # NumPy has no bfloat16
            yield path, bare.double().numpy()
    elif isinstance(tree, np.ndarray):
        if tree.dtype.kind in NUMBERS:
            yield path, tree
    elif isinstance(tree, (int, float, str, np.generic)):
        yield path, tree


def packed_distance(
    one: Path, other: Path, readers: Mapping[str, Reader] = MappingProxyType({})
) -> dict[str, Any] | None:
    """The gap of each file of two folders, which frameworks write; None for other checkpoints.

    Args:
        one: A checkpoint.
        other: Another one.
        readers: Further readers of files, by their suffix.

    Returns:
        ``parts``, by the files' names, and ``unlike``: the differences that have no number.
    """
    if not all(map(_is_packed, (one, other))):
        return None
    with zipfile.ZipFile(one) as left, zipfile.ZipFile(other) as right:
        both = {*left.namelist()} & {*right.namelist()}
        found: dict[str, Any] = {"parts": {}, "unlike": []}
        for name in dict.fromkeys(left.namelist() + right.namelist()):
            file = PurePosixPath(name).name
            stem = file.partition(".")[0]
            if name.endswith("/") or file.startswith(_NO_STATE):
                continue
            if name not in both:
                found["unlike"].append(f"one of them has no {file}")
                continue
            mine, yours = left.read(name), right.read(name)
            gap = 0.0 if mine == yours else _files_apart(name, mine, yours, readers)
            if gap is None:
                found["unlike"].append(f"{file} has other bytes")
            else:
                found["parts"][stem] = max(gap, found["parts"].get(stem, 0.0))
    return found


def file_distance(one: Path, other: Path) -> dict[str, Any]:
    """The gap of two files that the user's code has written, or whether their bytes differ."""
    mine, yours = one.read_bytes(), other.read_bytes()
    gap = 0.0 if mine == yours else _files_apart("any.pickle", mine, yours, {})
    if gap is None:
        return {"parts": {}, "unlike": ["the checkpoints are other bytes"]}
    return {"parts": {"the checkpoint": gap}, "unlike": []}


def loop_distance(one: Path, other: Path) -> dict[str, Any] | None:
    """The gap of each part of two files of ``resumable``; None for other checkpoints."""
    try:
        return loops_apart(read_plain(one), read_plain(other))
    except Exception:  # whatever wrote it
        return None


def loops_apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any] | None:
    """The gap of each part of what ``resumable`` has saved; None for anything else."""
    if not all({"state", "random"} <= kept.keys() for kept in (one, other)):
        return None
    first, second = _loop_parts(one), _loop_parts(other)
    both = first[_RANDOM].keys() & second[_RANDOM].keys()  # of libraries imported by then
    for each in (first, second):
        each[_RANDOM] = {name: each[_RANDOM][name] for name in both}
    gaps = {name: apart(first.get(name), second.get(name)) for name in {**first, **second}}
    return {"parts": gaps, "unlike": []}


def _loop_parts(kept: Mapping[str, Any]) -> dict[str, Any]:
    """What determines further training, by its name in the loop's state."""
    found = {name: decoded(each) for name, each in kept["state"].items()}
    return {**found, "other values": decoded(kept["values"]), _RANDOM: kept["random"]}


def _is_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return is_packed(file.read(_HEAD))


def _files_apart(
    name: str, one: bytes, other: bytes, readers: Mapping[str, Reader]
) -> float | None:
    """The gap of two files; None if what is in them cannot be read."""
    read = {**READERS, **readers}.get(PurePosixPath(name).suffix)
    try:
        return None if read is None else apart(read(one), read(other), of_files=True)
    except Exception:  # whatever wrote it
        return None
