"""Trials that take turns on real slots lose no step and make none twice."""

from __future__ import annotations

import math
from pathlib import Path

import objectives
import optuna
import pytest
from optuna.trial import TrialState
from tables import table_of

from optuna_deadline.elastic import ElasticWorker, agree
from optuna_deadline.options import WorkerOptions
from optuna_deadline.study.terms import Given

pytestmark = pytest.mark.slow


def test_a_preempted_trial_goes_on_as_if_nobody_had_come_between(
    sqlite_study: optuna.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "steps.txt"
    monkeypatch.setenv("RANK_LOG", str(log))
    quickness = [0.1, 0.9, 0.2, 0.8]
    for x in quickness:
        sqlite_study.enqueue_trial({"x": x})
    parameters = {"n_trials": 4, "warm_up": 3, "quantum": 0.5}
    terms = agree(sqlite_study, "100s", Given("hermes", parameters))
    result = ElasticWorker(
        sqlite_study, objectives.noted, terms, WorkerOptions(cpus=2, checkpoints=tmp_path)
    ).run()
    assert result.settled and result.trial_number == 1

    table = table_of(sqlite_study)
    steps = list(range(objectives.LAST + 1))
    made: dict[int, list[int]] = {number: [] for number in range(4)}
    for line in log.read_text().splitlines():
        number, step = map(int, line.split())
        made[number].append(step)
    assert made == dict.fromkeys(range(4), steps), "each step once, in its order"
    for trial in sqlite_study.get_trials(deepcopy=False):
        assert trial.state is TrialState.COMPLETE
        alone = [quickness[trial.number] * (1 - math.exp(-(step + 1) / 8)) for step in steps]
        assert [trial.intermediate_values[step] for step in steps] == alone

    # The slow third was let in for its warm-up, then gave way to the quick second.
    segments = sorted(table.segments(), key=lambda segment: segment.granted)
    third = next(segment for segment in segments if segment.number == 2)
    assert third.outcome == "pause"
    after = segments[segments.index(third) + 1 :]
    assert next(segment for segment in after if segment.number in (1, 2)).number == 1
    assert all(segment.slots == 1 for segment in segments if segment.number == 1)
