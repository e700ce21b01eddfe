"""Workers with the same script, and so with the same seed, do not try the same configurations."""

from __future__ import annotations

import optuna
from optuna.samplers import RandomSampler

from optuna_deadline._optuna import id_of_trial, storage_of
from optuna_deadline.worker.sampling import TrialSampler

SEED = 7


class Host:
    """One run of a script that makes its study with a seeded sampler."""

    def __init__(self, study: optuna.Study) -> None:
        self.study = optuna.load_study(
            study_name=study.study_name,
            storage=storage_of(study),
            sampler=RandomSampler(seed=SEED),
        )
        self.sampler = TrialSampler(self.study, lambda: None, lambda: True)

    def draw(self, trial_id: int) -> float:
        """The parameter of a trial that starts here, or resumes here."""
        return self.sampler.open_trial(trial_id).suggest_float("x", 0.0, 1.0)


def _expected(count: int) -> list[float]:
    study = optuna.create_study(sampler=RandomSampler(seed=SEED))
    return [study.ask().suggest_float("x", 0.0, 1.0) for _ in range(count)]


def _opened(study: optuna.Study) -> int:
    return id_of_trial(study.ask())


def test_one_worker_keeps_its_seed() -> None:
    study = optuna.create_study()
    host = Host(study)
    assert [host.draw(_opened(study)) for _ in range(3)] == _expected(3)


def test_each_further_worker_draws_its_own() -> None:
    study = optuna.create_study()
    first = Host(study).draw(_opened(study))
    others = [Host(study).draw(_opened(study)) for _ in range(3)]
    assert first == _expected(1)[0]
    assert len({first, *others}) == 4


def test_a_worker_that_starts_again_does_not_draw_the_same_again() -> None:
    study = optuna.create_study()
    resumed = _opened(study)
    x = Host(study).draw(resumed)
    again = Host(study)
    assert again.draw(resumed) == x  # what is drawn stays
    assert again.draw(_opened(study)) not in _expected(8)
