"""What each policy is for, seen in real processes: preemptions, a closed gate, a planned order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import objectives
import optuna
import pytest
from optuna.trial import TrialState
from tables import table_of

from optuna_deadline.allocation.records import SegmentRow
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.elastic import ElasticWorker, agree
from optuna_deadline.options import WorkerOptions
from optuna_deadline.study.terms import Given

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def train(
    study: optuna.Study,
    folder: Path,
    policy: str,
    objective: Callable[..., float] = objectives.elastic,
    deadline: str = "100s",
    **parameters: Any,
) -> tuple[AllocationTable, list[SegmentRow]]:
    terms = agree(study, deadline, Given(policy, parameters))
    result = ElasticWorker(
        study, objective, terms, WorkerOptions(cpus=2, checkpoints=folder)
    ).run()
    assert result.settled and result.value is not None
    table = table_of(study)
    return table, sorted(table.segments(), key=lambda segment: segment.granted)


def test_hermes_preempts_and_resumes(sqlite_study: optuna.Study, tmp_path: Path) -> None:
    for x in (0.1, 0.9, 0.2, 0.8, 0.3, 0.7, 0.4, 0.6):
        sqlite_study.enqueue_trial({"x": x})
    parameters = {"n_trials": 8, "warm_up": 3, "quantum": 0.5}
    _, segments = train(sqlite_study, tmp_path, "hermes", **parameters)
    preempted = [segment for segment in segments if segment.outcome == "pause"]
    resumed = [
        segment
        for segment in preempted
        if any(s.number == segment.number and s.fence > segment.fence for s in segments)
    ]
    assert len(resumed) >= 5
    complete = [t for t in sqlite_study.get_trials() if t.state is TrialState.COMPLETE]
    assert all(len(t.intermediate_values) == objectives.LAST + 1 for t in complete)
    best = sqlite_study.best_trial
    assert best.params["x"] == 0.9


def test_hypersched_closes_its_gate_and_gives_all_slots_to_the_best(
    sqlite_study: optuna.Study, tmp_path: Path
) -> None:
    table, segments = train(
        sqlite_study, tmp_path, "hypersched", objectives.longer, "20s", reduction_factor=2
    )
    gates = [event.detail["open"] for event in table.events(kinds=["gate"])]
    assert False in gates
    assert segments[-1].slots == 2 and max(segments, key=lambda s: s.slots).slots == 2
    assert len({segment.number for segment in segments}) > 2


def test_shockwave_trains_all_in_an_order_of_its_own(
    sqlite_study: optuna.Study, tmp_path: Path
) -> None:
    """Two long trainings come first; the short ones do not wait for their ends."""
    for x in (1.0, 0.4, 0.05, 0.05, 0.05, 0.05):
        sqlite_study.enqueue_trial({"x": x})
    _, segments = train(
        sqlite_study, tmp_path, "shockwave", objectives.lasting, n_trials=6, quantum=1.0
    )
    ends = [segment.number for segment in segments if segment.outcome == "complete"]
    assert sorted(ends) == list(range(6)), "none is dropped"
    last = sorted(
        (segment for segment in segments if segment.outcome == "complete"),
        key=lambda segment: segment.ended or 0.0,
    )
    assert {segment.number for segment in last[:4]} == {2, 3, 4, 5}
    assert any(segment.outcome == "pause" for segment in segments if segment.number < 2)
