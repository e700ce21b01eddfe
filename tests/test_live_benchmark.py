"""The live benchmark in small: real contenders, and what is made of their outcomes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.live.__main__ import Outcome, figures, main


def _outcome(contender: str, seed: int, value: float | None) -> Outcome:
    return Outcome(contender, 30.0, seed, value, overshoot=0.5 + seed, trials=4, epochs=20)


def test_differences_are_paired_by_seed_and_no_value_counts_as_none() -> None:
    ours, theirs = figures(
        [
            *(_outcome("elastic", seed, value) for seed, value in enumerate((0.9, 0.8))),
            *(_outcome("plain", seed, value) for seed, value in enumerate((0.8, None))),
        ]
    )
    assert ours["difference_to_elastic"]["mean"] == 0.0
    assert theirs["difference_to_elastic"]["mean"] == pytest.approx((-0.1 - 0.8) / 2)
    assert theirs["overshoot"] == 1.5  # the latest


@pytest.mark.slow
def test_who_knows_the_deadline_has_a_model_by_then(tmp_path: Path) -> None:
    file = tmp_path / "live.json"
    main(
        [
            *("--deadline", "12", "--seeds", "1", "--slots", "1"),
            *("--contender", "plain", "--json", str(file)),
        ]
    )
    [outcome] = json.loads(file.read_text())["outcomes"]
    assert outcome["trials"] > 0 and outcome["epochs"] >= outcome["trials"]
    assert 0 < outcome["value"] <= 1
