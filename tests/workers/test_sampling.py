"""A sampler that fails trial after trial ends the worker, one that fails at times does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import objectives
import optuna
import pytest
from optuna.samplers import RandomSampler
from optuna.trial import TrialState
from tables import table_of

import optuna_deadline
from optuna_deadline.errors import DeadlineError
from optuna_deadline.planning.sampling import SamplerErrors


def test_three_trials_that_fail_alike_are_enough() -> None:
    sampling = SamplerErrors()
    for number in (4, 5):
        sampling.record_failure(number, ValueError(f"no candidate for {number}.5"))
        assert sampling.error is None
    # the second rank of trial 5 asks too
    sampling.record_failure(5, ValueError("no candidate for 7"))
    assert sampling.error is None
    sampling.record_failure(6, ValueError("no candidate for 6"))
    assert "failed for 3 trials in the same way (ValueError: no cand" in str(sampling.error)


def test_other_errors_are_counted_anew() -> None:
    sampling = SamplerErrors()
    for number in range(9):
        sampling.record_failure(number, ValueError("even") if number % 2 else KeyError("odd"))
    assert sampling.error is None


def test_a_later_trial_that_has_its_parameters_shows_that_the_sampler_works() -> None:
    sampling = SamplerErrors()
    for number in range(0, 20, 2):
        sampling.record_failure(number, ValueError("at times"))
        sampling.record_success(number + 1)
    assert sampling.error is None
    for number in (20, 22, 24):
        sampling.record_failure(number, ValueError("at times"))
        sampling.record_success(19)  # it has had them for long
    assert sampling.error is not None


class Broken(RandomSampler):
    """Works for two trials."""

    def sample_independent(self, study: optuna.Study, trial: Any, *args: Any) -> Any:
        if trial.number >= 2:
            raise RuntimeError("this sampler is broken")
        return super().sample_independent(study, trial, *args)


@pytest.mark.slow
def test_a_sampler_that_breaks_after_reports_ends_the_worker_and_the_trials_are_saved(
    sqlite_url: str, tmp_path: Path
) -> None:
    study = optuna.create_study(storage=sqlite_url, direction="maximize", sampler=Broken(0))
    with pytest.raises(DeadlineError, match=r"failed for \d trials .*this sampler is broken"):
        optuna_deadline.run(
            study, objectives.elastic, cpus=2, deadline="300s", checkpoints=tmp_path, policy="fifo"
        )
    states = [trial.state for trial in study.get_trials()]
    failed = [line for line in table_of(study).trials() if line.state == "failed"]
    assert len(failed) >= 3  # Optuna may not know of the last one yet
    assert states[0] is not TrialState.FAIL and len(states) <= 8
