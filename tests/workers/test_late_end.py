"""What works across the deadline, and the worker that does not wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import objectives
import optuna
import pytest
from by_hand import DEADLINE, Hand, faked
from optuna.samplers import RandomSampler
from optuna.trial import TrialState

import optuna_deadline
from optuna_deadline.worker.agent import END_IS_LATE
from optuna_deadline.worker.sampling import SamplerTooSlow, TrialSampler


@pytest.fixture
def hand(tmp_path: Path) -> Iterator[Hand]:
    with faked() as (clock, _):
        moved = Hand(clock, tmp_path)
        yield moved
        moved.close()


def test_a_sampler_is_waited_for_only_while_something_needs_its_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    release = threading.Event()
    renewals: list[int] = []
    sampler = TrialSampler(optuna.create_study(), lambda: renewals.append(1), lambda: True)
    with pytest.raises(SamplerTooSlow):
        sampler.call(release.wait, lambda: len(renewals) < 3)
    assert len(renewals) == 3 and not caplog.records, "a wait of a moment is not worth a line"
    release.set()
    assert sampler.call(lambda: 7, lambda: True) == 7
    sampler.close()


@pytest.mark.parametrize(("planning", "patience"), [(6.0, 10.0), (0.1, 55.0)])
def test_a_worker_waits_for_the_end_of_its_study_but_not_for_ever(
    hand: Hand, caplog: pytest.LogCaptureFixture, planning: float, patience: float
) -> None:
    """A planner that waits for the leases of a dead worker gets the time that they last."""
    hand.turn()
    hand.clock.now = DEADLINE + patience - 1
    hand.turn()
    hand.agent.give_up_on_end(planning)
    assert hand.agent.leaving is None
    hand.clock.now = DEADLINE + patience + 1
    hand.turn()
    for _ in range(2):
        hand.agent.give_up_on_end(planning)
    assert hand.agent.leaving == END_IS_LATE and hand.agent._finished()
    [line] = [r.getMessage() for r in caplog.records if "not stored" in r.getMessage()]
    assert "start the same command again to store the rest" in line


def test_a_worker_that_starts_after_the_deadline_has_the_same_time(tmp_path: Path) -> None:
    with faked() as (clock, _):
        clock.now = DEADLINE + 60
        late = Hand(clock, tmp_path)
        clock.now += 9
        late.turn()
        late.agent.give_up_on_end(6.0)
        assert late.agent.leaving is None
        late.close()


@pytest.mark.parametrize("why", ["settled", "away"])
def test_a_study_that_has_ended_or_a_silent_database_is_no_late_end(hand: Hand, why: str) -> None:
    hand.turn()
    if why == "settled":
        assert hand.term is not None
        hand.table.settle(hand.agent.id, hand.term, DEADLINE)
    hand.away = why == "away"
    hand.clock.now = DEADLINE + 99
    hand.turn()
    hand.agent.give_up_on_end(99.0)
    assert hand.agent.leaving is None


class Stuck(RandomSampler):
    """Works for some trials, and then never returns from the method of this name."""

    def __init__(self, method: str, release: threading.Event) -> None:
        super().__init__(seed=1)
        self._method, self._release = method, release

    def sample_independent(self, study: optuna.Study, trial: Any, *args: Any) -> Any:
        if self._method == "sample" and trial.number >= 2:
            self._release.wait()
        return super().sample_independent(study, trial, *args)

    def after_trial(self, *args: Any) -> None:
        if self._method == "after_trial":
            self._release.wait()


@pytest.mark.slow
def test_a_sampler_that_works_across_the_deadline_does_not_delay_the_return(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()
    sampler = Stuck("sample", release)
    study = optuna.create_study(storage=sqlite_url, direction="maximize", sampler=sampler)
    result = optuna_deadline.run(
        study, objectives.brief, cpus=2, deadline="6s", checkpoints=tmp_path, policy="fifo"
    )
    release.set()
    assert result.settled and result.value is not None
    assert TrialState.RUNNING not in [trial.state for trial in study.get_trials()]
    assert "and this worker does not wait for it any longer" in caplog.text
    assert "had not reported by the deadline" not in caplog.text, "it had no parameters to train"


@pytest.mark.nightly
def test_an_end_that_takes_long_is_left_to_the_next_process(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()
    sampler = Stuck("after_trial", release)
    study = optuna.create_study(storage=sqlite_url, direction="maximize", sampler=sampler)

    def run() -> optuna_deadline.Result:
        return optuna_deadline.run(
            study, objectives.elastic, cpus=2, deadline="6s", checkpoints=tmp_path
        )

    first, returned = run(), time.time()
    assert not first.settled and first.value is not None and returned - first.deadline < 30
    assert "start the same command again to store the rest" in caplog.text
    release.set()
    study.sampler = RandomSampler()
    second = run()
    assert second.settled and (second.value, second.params) == (first.value, first.params)
    assert TrialState.RUNNING not in [trial.state for trial in study.get_trials()]
