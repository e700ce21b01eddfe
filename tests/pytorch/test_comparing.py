"""How far two checkpoints are apart."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from optuna_deadline_torch.comparing import compare

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
