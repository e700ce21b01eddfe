"""A worker that starts waits for its database as a running one does."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import cast

import optuna
import pytest
import sqlalchemy as sa
from optuna.exceptions import StorageInternalError

from optuna_deadline.elastic import lifecycle, run
from optuna_deadline.elastic.lifecycle import leaving_on_signals, when_answering
from optuna_deadline.errors import DeadlineError
from optuna_deadline.worker.agent import Agent
from optuna_deadline.worker.database_errors import leave_outages_to_workers

FULL = "FATAL:  sorry, too many clients already"
CUT = "server closed the connection unexpectedly"
DISK = "database or disk is full"
AWAY = "connection refused. Is the server running on that host?"


def _error(words: str) -> sa.exc.OperationalError:
    return sa.exc.OperationalError("", {}, Exception(words))


class Clock:
    """The monotonic clock, which only sleeps move."""

    now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    known = SimpleNamespace(monotonic=clock.monotonic, sleep=clock.sleep)
    monkeypatch.setattr(lifecycle, "time", known)
    return clock


def _failing(errors: list[Exception]) -> Callable[[], str]:
    def start() -> str:
        if errors:
            raise errors.pop(0)
        return "started"

    return start


@pytest.mark.parametrize("words", [FULL, CUT, "FATAL:  the database system is starting up", DISK])
def test_a_database_that_is_there_is_tried_again_and_told_once(
    clock: Clock, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrapped = StorageInternalError("An exception is raised during the commit.")
    wrapped.__cause__ = _error(words)
    assert when_answering(_failing([_error(words), wrapped, _error(words)])) == "started"
    line, over = caplog.messages
    assert words in line and "waits 20 s at most" in line
    assert over == "The database serves this worker after 1.5 s."
    with pytest.raises(sa.exc.OperationalError):
        when_answering(_failing([_error(words)] * 99))
    assert 20 < clock.now < 30


def test_one_that_does_not_answer_is_waited_for_only_if_asked(clock: Clock) -> None:
    """A mistyped host is an error at once."""
    with pytest.raises(sa.exc.OperationalError):
        when_answering(_failing([_error(AWAY)]))
    assert clock.now == 0
    assert when_answering(_failing([_error(AWAY)] * 50), wait=60.0) == "started"


def test_what_waiting_does_not_mend_is_raised_at_once(clock: Clock) -> None:
    with pytest.raises(sa.exc.OperationalError):
        when_answering(_failing([_error("FATAL:  password authentication failed")]), wait=0.0)
    with pytest.raises(DeadlineError):
        when_answering(_failing([DeadlineError("no such study")]), wait=60.0)
    assert clock.now == 0


@pytest.mark.postgres
@pytest.mark.slow
def test_connections_that_are_cut_while_it_starts_and_returns_end_no_worker(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from optuna_deadline.allocation.table import AllocationTable
    from optuna_deadline.elastic import ElasticWorker

    cuts = [0, 0, 0]
    orders, make = AllocationTable.orders, ElasticWorker.__init__
    result_of = ElasticWorker.result

    def cut_orders(table: AllocationTable, me: str) -> object:
        if cuts[0] < 2:
            cuts[0] += 1
            raise _error(CUT)
        return orders(table, me)

    def cut_make(worker: ElasticWorker, *args: object, **options: object) -> None:
        if cuts[1] < 2:
            cuts[1] += 1
            raise _error(CUT)
        make(worker, *args, **options)  # type: ignore[arg-type]

    def cut_result(worker: ElasticWorker) -> object:
        if cuts[2] < 2:
            cuts[2] += 1
            raise _error(CUT)
        return result_of(worker)

    monkeypatch.setattr(ElasticWorker, "result", cut_result)
    monkeypatch.setattr(AllocationTable, "orders", cut_orders)
    monkeypatch.setattr(ElasticWorker, "__init__", cut_make)
    study = optuna.create_study(storage=postgres_url)

    def objective(trial: optuna.Trial) -> float:
        trial.report(0.5, 1)
        return 0.5

    result = run(study, objective, cpus=1, deadline="60s", n_trials=1, policy="fifo")
    assert result.value == 0.5 and cuts == [2, 2, 2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_ctrl_c_ends_the_worker_at_once(number: signal.Signals) -> None:
    """A second SIGTERM does not: schedulers send several."""
    asked: list[str] = []
    agent = cast(Agent, SimpleNamespace(leave=asked.append))
    before = signal.getsignal(number)
    with leaving_on_signals(agent):
        signal.raise_signal(number)
        assert len(asked) == 1
        with pytest.raises(KeyboardInterrupt) if number == signal.SIGINT else nullcontext():
            signal.raise_signal(number)
        assert len(asked) == 1
    assert signal.getsignal(number) is before


def test_optuna_says_nothing_of_a_lost_connection(caplog: pytest.LogCaptureFixture) -> None:
    """Its warning has the whole statement in it, and the worker has said it in one sentence."""
    leave_outages_to_workers()
    storage = logging.getLogger("optuna.storages._rdb.storage")
    storage.addHandler(caplog.handler)
    storage.setLevel(logging.WARNING)
    storage.warning("Caught an error from sqlalchemy: gone. Falling back to a slower alternative.")
    storage.warning("something else")
    storage.removeHandler(caplog.handler)
    storage.setLevel(logging.NOTSET)
    assert set(caplog.messages) == {"something else"}
