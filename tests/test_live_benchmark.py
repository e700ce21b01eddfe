"""The live benchmark in small: real contenders, and what is made of their outcomes."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.live.__main__ import Outcome, earlier, figures, lead, main
from benchmarks.live.contender import missing
from benchmarks.live.reports import Report, append, improvements, read
from optuna_deadline.errors import DeadlineError

pytestmark = [pytest.mark.nightly_but(r"^$")]


EMPTY = {"outcomes": [], "task": "digits", "slots": 2, "epoch_seconds": {"16": 0.2}, "rows": []}


def _outcome(contender: str, seed: int, value: float | None) -> Outcome:
    return Outcome(contender, 30.0, seed, value, 0.5 + seed, gone=2.0, trials=4, epochs=20)


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
    assert 0 < outcome["value"] <= 1 and outcome["share"] > 0
    assert -12 < outcome["overshoot"] < outcome["gone"]


def test_a_run_goes_on_where_it_was_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "live.json"
    kept = [asdict(_outcome("plain", seed, 0.9)) for seed in range(2)]
    file.write_text(json.dumps(EMPTY | {"outcomes": kept}))
    main(["--deadline", "30", "--seeds", "2", "--contender", "plain", "--json", str(file)])
    assert "0.9000" in capsys.readouterr().out  # both seeds were there, and nothing trained
    with pytest.raises(DeadlineError, match="digits on 2 slots, not with bytes on 2"):
        earlier(file, "bytes", slots=2)


@pytest.mark.skipif(missing("ray_asha") is None, reason="Ray Tune is installed")
def test_who_is_not_installed_is_left_out_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "live.json"
    file.write_text(json.dumps(EMPTY))
    main(["--deadline", "30", "--contender", "ray_asha", "--json", str(file)])
    output = capsys.readouterr().out
    assert "ray_asha is left out" in output and 'pip install "ray[tune]"' in output


@pytest.mark.parametrize(
    ("direction", "values"), [("maximize", [0.2, 0.3, 0.4]), ("minimize", [0.2])]
)
def test_the_best_value_so_far_is_read_from_the_reports(
    direction: str, values: list[float], tmp_path: Path
) -> None:
    assert read(tmp_path) == []  # before the first report
    for at, trial, step, value in ((12.0, "b", 1, 0.3), (11.0, "a", 1, 0.2), (13.0, "a", 2, 0.4)):
        append(tmp_path, Report(at, trial, step, value, 16))
    append(tmp_path, Report(10.5, "c", 1, math.nan, 16))  # a trial that has diverged
    found = improvements(read(tmp_path), 10.0, direction)
    assert [value for _, value in found] == values
    assert found[0] == (1.0, 0.2)


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_a_lead_is_the_time_at_which_ours_had_the_best_peers_value(direction: str) -> None:
    sign = 1.0 if direction == "maximize" else -1.0
    ours = replace(_outcome("elastic", 0, sign), improved=[(6.0, 0.5 * sign), (15.0, sign)])
    peers = [_outcome("optuna_median", 0, 0.7 * sign), _outcome("plain", 0, 2.0 * sign)]
    assert lead([ours, *peers], 30.0, direction) == [0.5], "plain is ours"
    ahead = _outcome("ray_asha", 0, 1.1 * sign)
    assert lead([ours, *peers, ahead], 30.0, direction) == [None]
