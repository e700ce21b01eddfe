"""Where nothing asks the deadline, one warning says so and what that costs."""

from __future__ import annotations

import gc
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from clocks import FakeClock
from optuna.pruners import BasePruner, PatientPruner
from optuna.trial import FrozenTrial

from optuna_deadline import DeadlinePruner, DeadlineSampler
from optuna_deadline.pruners import _watch, find_deadline_pruner
from optuna_deadline.pruners._watch import _studies_of

pytestmark = [
    pytest.mark.nightly_but(r"^$"),  # the PostgreSQL twins
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
]


class Lenient(BasePruner):
    """A pruner of a user's own, which asks two others, and both only if it likes."""

    def __init__(self, *pruners: BasePruner) -> None:
        self.pruners = list(pruners)

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        return False


WRAPPED: dict[str, Callable[[DeadlinePruner], BasePruner]] = {
    "patient": lambda pruner: PatientPruner(pruner, patience=3),
    "twice": lambda pruner: PatientPruner(PatientPruner(pruner, patience=1), patience=3),
    "a user's": lambda pruner: Lenient(optuna.pruners.NopPruner(), pruner),
}


@pytest.mark.parametrize("wrap", WRAPPED)
def test_a_wrapped_pruner_ends_a_trial_that_improves(
    storage: str | None, clock: FakeClock, wrap: str
) -> None:
    pruner = DeadlinePruner("100s")._start(clock)
    study = optuna.create_study(
        storage=storage, pruner=WRAPPED[wrap](pruner), sampler=DeadlineSampler()
    )

    def objective(trial: optuna.Trial) -> float:
        for step in range(1, 40):
            clock.advance(8)
            trial.report(1 / step, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return 0.0

    study.optimize(objective)
    assert study.trials[0].last_step == 12
    assert "deadline" in study.trials[0].user_attrs["optuna_deadline:pruned_because"]
    assert find_deadline_pruner(study.pruner) is pruner
    assert find_deadline_pruner(pickle.loads(pickle.dumps(study.pruner))) is not None


def test_patience_is_kept_before_the_deadline(clock: FakeClock) -> None:
    pruner = PatientPruner(DeadlinePruner("1000s")._start(clock), patience=3)
    study = optuna.create_study(pruner=pruner, sampler=DeadlineSampler())

    def objective(trial: optuna.Trial) -> float:
        for step in range(1, 9):
            clock.advance(1)
            trial.report(trial.number + 1 / step, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return 0.0

    study.optimize(objective, n_trials=12)
    assert {trial.state.name for trial in study.trials} == {"COMPLETE"}


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings of this package."""
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


@pytest.mark.parametrize("sampled", [False, True])
def test_at_the_deadline_a_trial_that_never_asks_is_named_with_its_cost(
    storage: str | None, clock: FakeClock, caplog: pytest.LogCaptureFixture, sampled: bool
) -> None:
    pruner = DeadlinePruner("10s")._start(clock)
    sampler = DeadlineSampler() if sampled else optuna.samplers.RandomSampler()
    study = optuna.create_study(study_name="s", storage=storage, pruner=pruner, sampler=sampler)

    def objective(trial: optuna.Trial) -> float:
        clock.advance(12)
        pruner._watch.look()
        clock.advance(2)
        return 1.0

    study.optimize(objective, n_trials=1)
    assert (
        "deadline of the study 's' has passed and nothing checks it: trial 0" in warned(caplog)[0]
    )
    assert "has run for 12 s and asked nothing. Report in" in warned(caplog)[0]
    assert len(warned(caplog)) == 1 + sampled
    if sampled:
        assert "Trial 0 ended 4 s after the deadline, with 0 reports" in warned(caplog)[1]


def test_the_cost_is_known_from_earlier_trials(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    pruner = DeadlinePruner("10s")._start(clock)
    study = optuna.create_study(pruner=pruner)
    study.optimize(lambda trial: 1.0, n_trials=2)

    def objective(trial: optuna.Trial) -> float:
        pruner._watch.look()
        return 1.0

    study.optimize(objective, n_trials=3)
    [line] = warned(caplog)
    assert "It ends 0 s late if it takes 0 s as those before it, and each further" in line


def test_a_trial_that_asks_is_not_named(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    pruner = DeadlinePruner("10s")._start(clock)
    study = optuna.create_study(pruner=pruner, sampler=DeadlineSampler())

    def objective(trial: optuna.Trial) -> float:
        for step in range(20):
            clock.advance(1)
            trial.report(0.0, step)
            if trial.should_prune():
                pruner._watch.look()
                break
        return 1.0

    study.optimize(objective)
    assert warned(caplog) == []


@pytest.mark.parametrize("sampled", [False, True])
def test_a_trial_of_another_process_is_left_to_that(
    clock: FakeClock, caplog: pytest.LogCaptureFixture, sampled: bool
) -> None:
    pruner = DeadlinePruner("10s")._start(clock)
    study = optuna.create_study(pruner=pruner)
    trial = study.ask()
    trial.report(0.5, 1)
    trial.should_prune()  # this process asks
    other = study.ask()
    if sampled:
        study._storage.set_trial_system_attr(other._trial_id, _watch.PROCESS, [-1, "boot"])
    clock.advance(12)
    pruner._watch.look()
    assert warned(caplog) == []


def test_a_study_that_another_thread_makes_just_now_stops_no_look(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    unfinished = optuna.Study.__new__(optuna.Study)
    pruner = DeadlinePruner("10s")._start(clock)
    study = optuna.create_study(pruner=pruner, sampler=DeadlineSampler())
    study.ask()
    clock.advance(12)
    pruner._watch.look()
    assert len(warned(caplog)) == 1
    assert not hasattr(unfinished, "pruner")


def test_a_deadline_that_was_moved_is_looked_at_again(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[tuple[_watch.DeadlineWatch, float]] = []

    class Timer:
        def __init__(self, seconds: float, look: Any, *_: Any) -> None:
            begun.append((look.__self__, seconds))

        def start(self) -> None:
            """Never fires."""

        cancel = start

    monkeypatch.setattr(threading, "Timer", Timer)
    pruner = DeadlinePruner("1h")
    study = optuna.create_study(pruner=pruner, sampler=DeadlineSampler())
    study.optimize(lambda trial: 1.0, n_trials=1)
    pruner._watch.look()
    again = pickle.loads(pickle.dumps(pruner))
    # A watch that another test has left may begin a timer too.
    first, moved = (seconds for watch, seconds in begun if watch is pruner._watch)
    (unpickled,) = (seconds for watch, seconds in begun if watch is again._watch)
    assert [first, moved] == pytest.approx([3600.25, 3600.25], abs=60)
    assert unpickled <= first and again._watch is not pruner._watch
    assert warned(caplog) == []


def test_the_watch_ends_with_its_pruner() -> None:
    before = set(threading.enumerate())
    pruners = [DeadlinePruner("1h") for _ in range(5)]
    threads = set(threading.enumerate()) - before
    assert len(threads) == 5
    del pruners
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_worker_that_uses_the_study_ends_the_watch(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    pruner = DeadlinePruner("10s")._start(clock)
    study = optuna.create_study(pruner=pruner)
    pruner._terms(study)
    study.ask()
    clock.advance(12)
    pruner._watch.look()
    assert warned(caplog) == []


def test_a_loop_that_asks_and_tells_too_long_is_told_of_time_left(
    storage: str | None, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    study = optuna.create_study(
        storage=storage, pruner=DeadlinePruner("10s")._start(clock), sampler=DeadlineSampler()
    )
    for _ in range(6):
        trial = study.ask()
        clock.advance(3)
        study.tell(trial, 1.0)
    [line] = warned(caplog)
    assert "study.ask began trial 4 2 s after the deadline" in line
    assert "while optuna_deadline.time_left(study) > 0" in line


@pytest.mark.parametrize("around", WRAPPED)
def test_a_look_finds_the_study_of_a_pruner_that_nothing_has_asked(
    around: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All objects are looked at a few times only, however much refers to the pruner."""
    pruner = DeadlinePruner("10s")._start(clock)
    study = optuna.create_study(pruner=WRAPPED[around](pruner))
    others: list[Any] = [[pruner], {"pruner": pruner}, (pruner,)]
    others += [{"others": others, "also": [others]}]
    looks: list[int] = []
    here = threading.get_ident()

    def get_referrers(*objects: object) -> list[Any]:
        if threading.get_ident() == here:
            looks.append(len(objects))
        return gc.get_referrers(*objects)

    monkeypatch.setattr(_watch, "gc", SimpleNamespace(get_referrers=get_referrers))
    assert list(_watch._studies_of(pruner)) == [study]
    assert len(looks) <= 12 and sum(looks) < 50, looks


def test_later_looks_know_the_studies_of_the_first(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruner = DeadlinePruner("10s")._start(clock)
    study = optuna.create_study(pruner=pruner)
    planned: list[Any] = []
    monkeypatch.setattr(pruner._watch, "_look_in", lambda *given: planned.append(given))
    clock.advance(12)
    pruner._watch.look(10)
    [(_, looks, known)] = planned
    assert (looks, [ref() for ref in known]) == (9, [study])
    monkeypatch.setattr(_watch, "_studies_of", None)
    pruner._watch.look(looks, known)
    assert len(planned) == 2


def test_a_look_for_studies_does_not_disturb_a_tuple_that_is_being_built() -> None:
    """Python cannot resize a tuple to which a list of all objects refers."""
    pruner = DeadlinePruner("1h")
    studies = [optuna.create_study(pruner=pruner) for _ in range(2)]
    looks = _studies_of(pruner)

    def numbers() -> Iterator[int]:
        for number in range(50):
            if number == 5:
                assert next(looks) in studies
            yield number

    assert tuple(numbers()) == tuple(range(50))
    assert next(looks) in studies
