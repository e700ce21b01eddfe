"""How far two checkpoints are apart."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from optuna_deadline_torch.comparing import compare

from optuna_deadline.checkpoints.folders import pack
from optuna_deadline.plain_data import write_plain

_LOOP: dict[str, Any] = {
    "state_dict": {"a": torch.tensor([3.0, 4.0]), "b": torch.zeros(2)},
    "states": {"optimizer": {"state": {0: {"step": 4}}}, "scheduler": {"last_epoch": 4}},
    "optuna_deadline": {"position": [0, 4], "reported": -1, "order": {"loaders": []}},
}


def _compared(folder: Path, other: Any, one: Any = None) -> dict[str, Any]:
    torch.save(_LOOP if one is None else one, folder / "one")
    torch.save(other, folder / "other")
    return compare(folder / "one", folder / "other")


def _changed(*path: str, to: Any) -> dict[str, Any]:
    state = copy.deepcopy(_LOOP)
    part = state
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = to
    return state


def test_a_state_is_no_way_from_itself(tmp_path: Path) -> None:
    found = _compared(tmp_path, _LOOP)
    parts = {"weights": 0.0, "optimizer": 0.0, "scheduler": 0.0}
    assert found == {"parts": parts, "unlike": [], "grows": False}


def test_a_checkpoint_tells_that_the_batch_grows_with_the_slots(tmp_path: Path) -> None:
    state = _changed("optuna_deadline", "scaling", to={"rule": "sqrt"})
    assert _compared(tmp_path, state, state)["grows"]


def test_weights_are_apart_by_the_length_of_their_difference(tmp_path: Path) -> None:
    found = _compared(tmp_path, _changed("state_dict", "a", to=torch.tensor([3.0, 4.05])))
    assert found["parts"]["weights"] == pytest.approx(0.05 / 5, rel=1e-5)


def test_a_scheduler_that_is_behind_is_seen(tmp_path: Path) -> None:
    found = _compared(tmp_path, _changed("states", "scheduler", "last_epoch", to=3))
    assert found["parts"]["scheduler"] == 0.25


def test_other_shapes_and_missing_parts_are_as_far_as_can_be(tmp_path: Path) -> None:
    found = _compared(tmp_path, _changed("state_dict", "a", to=torch.zeros(3)))
    assert math.isinf(found["parts"]["weights"])
    found = _compared(tmp_path, _changed("states", "scheduler", to={}))
    assert math.isinf(found["parts"]["scheduler"])


def test_what_is_nan_in_both_is_the_same(tmp_path: Path) -> None:
    state = _changed("state_dict", "a", to=torch.tensor([math.nan, 1.0]))
    assert _compared(tmp_path, state, state)["parts"]["weights"] == 0.0


def test_another_place_and_other_batches_are_said(tmp_path: Path) -> None:
    [words] = _compared(tmp_path, _changed("optuna_deadline", "position", to=[1, 0]))["unlike"]
    assert "position [1, 0]" in words
    dealt = {"loaders": [{"dealt": "ab"}]}
    [words] = _compared(tmp_path, _changed("optuna_deadline", "order", to=dealt))["unlike"]
    assert "other batches" in words


def test_files_of_another_kind_are_compared_by_their_bytes(tmp_path: Path) -> None:
    for name, text in (("one", "a"), ("same", "a"), ("other", "b")):
        (tmp_path / name).write_text(text)
    assert compare(tmp_path / "one", tmp_path / "same")["unlike"] == []
    assert compare(tmp_path / "one", tmp_path / "other")["unlike"]


def test_best_scores_are_compared_whatever_their_files_are_called(tmp_path: Path) -> None:
    def kept(scores: dict[str, float]) -> dict[str, Any]:
        best = {name: torch.tensor(score) for name, score in scores.items()}
        return {"state_dict": {}, "callbacks": {"ModelCheckpoint": {"best_k_models": best}}}

    one = kept({"a/1.ckpt": 0.5, "a/2.ckpt": 0.7})
    assert _compared(tmp_path, kept({"b/2-v1.ckpt": 0.7, "b/1.ckpt": 0.5}), one) == {
        "parts": {"weights": 0.0, "callbacks": 0.0}, "unlike": [], "grows": False,
    }  # fmt: skip
    found = _compared(tmp_path, kept({"b/1.ckpt": 0.5, "b/2.ckpt": 0.6}), one)
    assert found["parts"]["callbacks"] > 0.1


def written(folder: Path, weight: float, *, beside: float = 0.0, more: str = "") -> Path:
    """A checkpoint that is a folder, with a file of each kind."""
    h5py = pytest.importorskip("h5py")
    save_file = pytest.importorskip("safetensors.torch").save_file
    folder.mkdir()
    weights = {"w": torch.tensor([3.0, weight])}
    torch.save({"state": {0: weights}}, folder / "optimizer.pt")
    save_file(weights, folder / "model.safetensors")
    np.savez(folder / "arrays.npz", w=[3.0, weight])
    with h5py.File(folder / "model.weights.h5", "w") as file:
        file.create_dataset("layers/dense/0", data=[3.0, weight])
    write_plain({"values": {"a": weight}, "told": [str(beside)]}, folder / "attributes")
    log = [{"loss": weight, "eval_runtime": beside}]
    (folder / "state.json").write_text(json.dumps({"name": f"a{more}", "log": log}))
    torch.save(torch.tensor([beside]), folder / "rng_state.pth")
    pack(folder, folder.with_suffix(".zip"))
    return folder.with_suffix(".zip")


def test_the_files_of_folders_are_compared_by_what_they_hold(tmp_path: Path) -> None:
    one = written(tmp_path / "one", 4.0)
    same = compare(one, written(tmp_path / "same", 4.0, beside=1.0))
    assert same == {"parts": dict.fromkeys(same["parts"], 0.0), "unlike": []}
    assert same["parts"].keys() == {"optimizer", "model", "arrays", "attributes", "state"}
    other = compare(one, written(tmp_path / "other", 4.4))["parts"]
    far = {"optimizer": 0.08, "model": 0.08, "arrays": 0.08, "attributes": 1 / 11, "state": 1 / 11}
    assert other == pytest.approx(far)
    assert compare(one, written(tmp_path / "named", 4.0, more="b"))["parts"]["state"] == math.inf


def test_a_file_that_is_unknown_or_missing_has_no_number(tmp_path: Path) -> None:
    for name, text in (("one", "a"), ("other", "b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.own").write_text(text)
        (tmp_path / name / f"{name}.json").write_text("{}")
        pack(tmp_path / name, tmp_path / f"{name}.zip")
    found = compare(tmp_path / "one.zip", tmp_path / "other.zip")["unlike"]
    assert sorted(found) == [
        "model.own has other bytes",
        "one of them has no one.json",
        "one of them has no other.json",
    ]


def test_texts_of_a_loop_are_no_part_of_its_training(tmp_path: Path) -> None:
    named = [
        {**_LOOP, "states": {"own": {"folder": name, "odd": np.array([None])}}} for name in "ab"
    ]
    assert _compared(tmp_path, *named)["parts"] == {"weights": 0.0, "own": 0.0}
