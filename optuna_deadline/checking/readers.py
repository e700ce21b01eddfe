"""What is in the files that frameworks write, as trees of arrays, numbers and texts."""

from __future__ import annotations

import io
import json
import pickle
import re
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from optuna_deadline.plain_data import read_plain

Reader = Callable[[bytes], Any]
NUMBERS = "biufc"  #: kinds of arrays


def _pickled(data: bytes) -> Any:
    """What joblib or pickle has written; it is the user's own, written a moment ago."""
    try:
        load = import_module("joblib").load
    except ImportError:
        load = pickle.load
    return _tree(load(io.BytesIO(data)), set())


def _tree(value: Any, seen: set[int]) -> Any:
    """Objects as that of which pickle would make them again; each once."""
    if value is None or isinstance(value, (int, float, str, np.generic)):
        return value
    if isinstance(value, (bytes, type)):
        return repr(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in NUMBERS:
        return value
    if id(value) in seen:
        return None
    seen.add(id(value))
    if isinstance(value, dict):
        return {str(key): _tree(each, seen) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_tree(each, seen) for each in value]
    made = value.__reduce_ex__(4)
    if isinstance(made, str):  # the name of a function
        return made
    items = [list(one) for one in made[3:5] if one is not None]  # they may be iterators
    return _tree([*made[1:3], *items], seen)


def _hdf5(data: bytes) -> Any:
    import h5py

    found: dict[str, Any] = {}
    with h5py.File(io.BytesIO(data)) as file:
        file.visititems(
            lambda name, one: found.update({name: one[()]}) if hasattr(one, "shape") else None
        )
    return found


def _lightgbm(data: bytes) -> Any:
    """The scores of random rows; the file has the seed of the segment, too."""
    text = data.decode()
    booster = import_module("lightgbm").Booster(model_str=text)
    ranges = re.search("^feature_infos=(.*)$", text, re.MULTILINE)
    low, high = np.transpose([_range(one) for one in ranges[1].split()] if ranges else [])
    rows = np.random.default_rng(0).uniform(low, high, size=(1000, len(low)))
    return {"trees": booster.num_trees(), "scores": booster.predict(rows, raw_score=True)}


def _range(info: str) -> tuple[float, float]:
    """The values that a feature has in training, from ``[0:1.5]``, ``0:1:2`` or ``none``."""
    values = [float(one) for one in info.strip("[]").split(":")] if info != "none" else [0.0]
    return min(values), max(values)


def _catboost(data: bytes) -> Any:
    """The trees; what describes them has the time."""
    catboost = import_module("catboost")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.json")
        catboost.CatBoost().load_model(blob=data).save_model(str(file), format="json")
        found: dict[str, Any] = json.loads(file.read_text())
    return {name: part for name, part in found.items() if name != "model_info"}


#: By the suffixes of files.
READERS: dict[str, Reader] = {
    ".cbm": _catboost,
    ".txt": _lightgbm,
    ".h5": _hdf5,
    **dict.fromkeys((".joblib", ".pkl", ".pickle"), _pickled),
    ".npz": lambda data: dict(np.load(io.BytesIO(data))),
    ".json": json.loads,
    "": lambda data: read_plain(io.BytesIO(data)),  # of this package
}
