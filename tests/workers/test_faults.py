"""What dies, hangs or goes away while real workers train, and what is left then."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import objectives
import optuna
import psutil
import pytest
from endings import run_until, saved
from forked import WorkerProcess
from optuna.trial import TrialState
from tables import running, table_of, wait_until

from benchmarks.support.postgres import EmbeddedPostgres
from optuna_deadline.elastic import agree
from optuna_deadline.options import WorkerOptions
from optuna_deadline.rank.fork_server import ForkServer
from optuna_deadline.study.terms import Given

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly_but(
        r"\[(2|15)?-?postgres|\[postgres|killed_worker_that|no_orphan|\[cut|whole|at_the_start"
    ),
]
Start = Callable[..., WorkerProcess]
LogText = Callable[[], str]

#: A deadline that no test here reaches, on a slow machine either.
AMPLE = "100s"


def pids(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()] if log.exists() else []


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where ranks write their process ids."""
    return tmp_path / "pids"


def reported(study: optuna.Study, step: int) -> Callable[[], bool]:
    table = table_of(study)
    return lambda: any(row.step >= step for row in table.reports())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_leave_it_saves_and_the_same_command_goes_on(
    study: optuna.Study, storage_url: str, start_worker: Start, log: Path, number: signal.Signals
) -> None:
    agree(study, AMPLE, Given("fifo"))
    worker = start_worker(storage_url, "slow", RANK_LOG=str(log))
    wait_until(reported(study, 3))
    worker.send_signal(number)
    assert worker.wait(30) == 130
    table = table_of(study)
    [line] = table.trials()
    assert (line.state, line.owner) == ("paused", None)
    assert study.get_trials()[0].state is TrialState.RUNNING  # nobody else may take it
    last = max(row.step for row in table.reports())
    worker = start_worker(storage_url, "slow", RANK_LOG=str(log))
    wait_until(reported(study, last + 5))
    assert [segment.fence for segment in table.segments()] == [1, 2]
    steps = [row.step for row in table.reports()]
    assert steps == list(range(len(steps)))  # no step twice, none left out
    worker.send_signal(signal.SIGTERM)


@pytest.mark.skipif(sys.platform != "linux", reason="who has ended is read from /proc")
def test_a_killed_worker_that_is_started_again_goes_on_at_once(
    sqlite_study: optuna.Study, sqlite_url: str, start_worker: Start, log: Path, log_text: LogText
) -> None:
    """Neither the dead one's leases nor its term as a planner is waited for."""
    agree(sqlite_study, AMPLE, Given("fifo"))
    given = {"ttl": 600.0, "grace": 600.0, "RANK_LOG": str(log)}  # longer than this test may take
    worker = start_worker(sqlite_url, "slow", **given)
    wait_until(reported(sqlite_study, 3))
    worker.kill()
    worker.wait()
    table = table_of(sqlite_study)
    [before] = table.segments()
    start_worker(sqlite_url, "slow", **given)
    wait_until(lambda: any(row.fence > before.fence for row in table.segments()))
    kinds = [event.kind for event in table.events() if event.kind in ("register", "lost", "elect")]
    assert kinds == ["register", "elect", "lost", "register", "elect"]
    assert f"Worker process {worker.pid} was killed" in log_text()


def test_a_killed_rank_goes_on_from_its_checkpoint(
    study: optuna.Study, storage_url: str, start_worker: Start, log: Path, log_text: LogText
) -> None:
    agree(study, AMPLE, Given("fifo"))
    worker = start_worker(storage_url, "slow", RANK_LOG=str(log))
    wait_until(reported(study, 5))
    os.kill(pids(log)[0], signal.SIGKILL)
    wait_until(reported(study, 12))
    table = table_of(study)
    assert table.segments()[0].outcome == "died"
    assert table.trials()[0].failures == 1
    assert pids(log)[0] != pids(log)[1]
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 130
    assert "SIGKILL; often the machine was out of memory" in log_text()


def test_a_trial_that_keeps_dying_fails(
    study: optuna.Study, storage_url: str, start_worker: Start, log: Path
) -> None:
    agree(study, AMPLE, Given("fifo"))
    worker = start_worker(storage_url, "stuck", RANK_LOG=str(log))
    for deaths in range(3):
        wait_until(lambda n=deaths: len(pids(log)) > n)  # type: ignore[misc]
        os.kill(pids(log)[deaths], signal.SIGKILL)
    wait_until(lambda: study.get_trials()[0].state is TrialState.FAIL)
    wait_until(lambda: len(table_of(study).trials()) > 1)  # the slot is free for others
    worker.send_signal(signal.SIGTERM)


def test_a_trial_that_gets_further_between_its_deaths_goes_on(
    study: optuna.Study, storage_url: str, start_worker: Start, log: Path
) -> None:
    agree(study, AMPLE, Given("fifo"))
    worker = start_worker(storage_url, "slow", RANK_LOG=str(log))
    for deaths in range(4):
        last = max((checkpoint.step for checkpoint in table_of(study).checkpoints(0)), default=0)
        wait_until(reported(study, last + 3))
        os.kill(pids(log)[deaths], signal.SIGKILL)
        wait_until(lambda n=deaths: len(pids(log)) > n + 1)  # type: ignore[misc]
    [line] = table_of(study).trials()
    assert (line.number, line.failures) == (0, 1)
    worker.send_signal(signal.SIGTERM)


def test_a_killed_worker_takes_its_ranks_along_and_its_trial_comes_back(
    study: optuna.Study, storage_url: str, start_worker: Start, log: Path
) -> None:
    agree(study, AMPLE, Given("fifo"))
    worker = start_worker(storage_url, "slow", RANK_LOG=str(log), ttl=3, grace=1)
    wait_until(reported(study, 3))
    worker.kill()
    [pid] = pids(log)
    wait_until(lambda: not running(pid))
    last = max(row.step for row in table_of(study).reports())
    again = start_worker(storage_url, "slow", RANK_LOG=str(log), ttl=3, grace=1)
    wait_until(reported(study, last + 3))
    # Another trial may have come as far on the new worker's slot before the old lease is over.
    wait_until(lambda: ("lost", 0, 1) in _outcomes(study))
    again.send_signal(signal.SIGTERM)


def _outcomes(study: optuna.Study) -> set[tuple[str | None, int, int]]:
    return {(s.outcome, s.number, s.fence) for s in table_of(study).segments()}


def test_no_orphan_is_left_though_worker_and_watchdog_die_together(
    sqlite_study: optuna.Study, sqlite_url: str, start_worker: Start, log: Path
) -> None:
    agree(sqlite_study, AMPLE, Given("fifo", {"n_trials": 2}))
    worker = start_worker(sqlite_url, "parenting", RANK_LOG=str(log), cpus=2)
    wait_until(lambda: len(pids(log)) >= 4)  # two ranks, and a child of each
    wait_until(reported(sqlite_study, 2))

    def watches(child: psutil.Process) -> bool:
        try:
            return "watchdog" in " ".join(child.cmdline())
        except psutil.NoSuchProcess:  # it has just died
            return False

    def watchdogs() -> list[psutil.Process]:
        return [child for child in psutil.Process(worker.pid).children() if watches(child)]

    [first] = watchdogs()
    first.kill()  # alone: it is replaced, and nobody notices
    wait_until(lambda: any(child.pid != first.pid for child in watchdogs()))
    assert all(running(pid) for pid in pids(log))
    family = [child.pid for child in psutil.Process(worker.pid).children(recursive=True)]
    assert set(pids(log)) <= set(family)
    watchdogs()[-1].kill()
    worker.kill()
    wait_until(lambda: not any(running(pid) for pid in {*family, *pids(log)}), seconds=5)


def test_a_frozen_workers_ranks_are_killed_before_its_slots_are_free(
    study: optuna.Study, storage_url: str, start_worker: Start, log: Path
) -> None:
    agree(study, AMPLE, Given("fifo"))
    worker = start_worker(storage_url, "slow", RANK_LOG=str(log), ttl=3, grace=1)
    wait_until(reported(study, 3))
    [pid] = pids(log)
    worker.send_signal(signal.SIGSTOP)
    wait_until(lambda: not running(pid))
    [slot] = table_of(study).slots()
    assert slot.holder is not None and slot.lease is not None
    assert table_of(study).now() < slot.lease  # dead while the lease still held
    worker.send_signal(signal.SIGCONT)
    wait_until(reported(study, 8))


def test_a_frozen_workers_ranks_end_even_if_its_watchdog_is_frozen_too(
    study: optuna.Study, storage_url: str, start_worker: Start, log: Path
) -> None:
    agree(study, AMPLE, Given("fifo"))
    worker = start_worker(storage_url, "slow", RANK_LOG=str(log), ttl=3, grace=1)
    wait_until(reported(study, 3))
    [pid] = pids(log)
    family = psutil.Process(worker.pid).children()
    [watchdog] = [child for child in family if "watchdog" in " ".join(child.cmdline())]
    watchdog.suspend()
    worker.send_signal(signal.SIGSTOP)
    wait_until(lambda: not running(pid))
    [slot] = table_of(study).slots()
    assert slot.lease is not None and table_of(study).now() < slot.lease
    watchdog.kill()
    worker.send_signal(signal.SIGCONT)
    wait_until(reported(study, 8))


def test_a_killed_fork_server_is_replaced(
    study: optuna.Study, storage_url: str, start_worker: Start, log: Path, log_text: LogText
) -> None:
    agree(study, AMPLE, Given("fifo", {"reduction_factor": 4}))
    worker = start_worker(storage_url, "slow", RANK_LOG=str(log))
    wait_until(reported(study, 3))
    rank = psutil.Process(pids(log)[0])
    fork_server = rank.parent()
    assert fork_server is not None
    fork_server.kill()
    rank.kill()
    wait_until(lambda: len(pids(log)) > 1)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 130
    assert "a new one starts" in log_text()


def test_a_fork_server_killed_while_it_loads_the_objective_is_replaced(
    study: optuna.Study, storage_url: str, start_worker: Start, log: Path, log_text: LogText
) -> None:
    agree(study, AMPLE, Given("fifo"))
    worker = start_worker(storage_url, "slow", RANK_LOG=str(log))

    def has_killed() -> bool:
        for child in psutil.Process(worker.pid).children():
            if ForkServer.__module__ in " ".join(child.cmdline()):
                child.kill()
                return True
        return False

    wait_until(has_killed)  # killed as soon as it is seen: a second look may come during its exec
    wait_until(lambda: "a new one starts" in log_text())
    wait_until(reported(study, 3))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 130


def test_training_goes_on_while_the_database_is_gone(
    start_worker: Start, log: Path, log_text: LogText
) -> None:
    with EmbeddedPostgres(durable=True) as server:  # a crash must keep what was committed
        url = server.create_database("away")
        study = optuna.create_study(study_name="study", storage=url, direction="maximize")
        agree(study, "33s", Given("fifo"))
        worker = start_worker(url, "slow", RANK_LOG=str(log))
        wait_until(reported(study, 3))
        [lease] = [row.lease for row in table_of(study).workers()]
        wait_until(lambda: table_of(study).workers()[0].lease > lease)
        server.stop("immediate")  # just renewed: leases are believed for 25 s more
        time.sleep(15)
        server.start()
        assert worker.wait(30) == 0
        # While the server ends, it may still refuse a connection in words.
        assert re.search("The database does not (answer|serve this worker)", log_text())
        assert "answers again" in log_text()
        assert len(pids(log)) == len(set(pids(log)))
        table = table_of(study)
        first = [row.step for row in table.reports() if row.number == 0]
        assert first == list(range(len(first))) and len(first) > 120  # trained meanwhile
        assert [s.outcome for s in table.segments() if s.number == 0] == ["deadline"]
        study = optuna.load_study(study_name="study", storage=url)
        assert all(trial.state.is_finished() for trial in study.get_trials())


def test_a_database_that_is_not_there_at_the_start(start_worker: Start) -> None:
    worker = start_worker("postgresql://127.0.0.1:1/none", "slow", RANK_LOG="x")
    assert worker.wait(20) != 0


def test_a_deleted_study_ends_its_workers(
    study: optuna.Study, storage_url: str, start_worker: Start, log: Path, log_text: LogText
) -> None:
    agree(study, AMPLE, Given("fifo"))
    worker = start_worker(storage_url, "slow", RANK_LOG=str(log))
    wait_until(reported(study, 3))
    [rank] = pids(log)
    os.kill(rank, signal.SIGSTOP)  # where a report arrives meanwhile, Optuna deletes nothing
    while optuna.get_all_study_names(study._storage):
        # Where worker and deletion wait for each other, the server may choose the deletion.
        with suppress(optuna.exceptions.StorageInternalError):
            optuna.delete_study(study_name="study", storage=study._storage)
    with suppress(ProcessLookupError):  # its worker may have ended it by now
        os.kill(rank, signal.SIGCONT)
    assert worker.wait(30) == 1
    assert "The study was deleted while the worker ran" in log_text()
    assert "Traceback" not in log_text()
    assert not running(rank)


@pytest.mark.parametrize("damage", ["cut", "flip", "remove"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    sqlite_study: optuna.Study,
    sqlite_url: str,
    start_worker: Start,
    log: Path,
    damage: str,
    log_text: LogText,
) -> None:
    study, storage_url = sqlite_study, sqlite_url
    agree(study, AMPLE, Given("fifo"))
    worker = start_worker(storage_url, "slow", RANK_LOG=str(log))
    wait_until(reported(study, 5))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 130
    newest, before = table_of(study).checkpoints(0)[:2]
    whole = newest.path.read_bytes()
    if damage == "cut":
        newest.path.write_bytes(whole[:-1])
    elif damage == "flip":
        newest.path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    else:
        newest.path.unlink()
    worker = start_worker(storage_url, "slow", RANK_LOG=str(log))
    wait_until(reported(study, newest.step + 3))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 130
    assert "is damaged or missing; the trial resumes from the one before" in log_text()
    assert before.step < newest.step


def test_the_winner_is_the_best_that_is_whole(tmp_path: Path) -> None:
    study = optuna.create_study(direction="maximize")
    result = run_until(
        saved(2),
        study,
        objectives.elastic,
        cpus=1,
        checkpoints=tmp_path,
        worker=WorkerOptions(keep_all=True),
    )
    assert result.checkpoint is not None
    result.checkpoint.write_text("torn")
    from optuna_deadline.planning.best_model import find_winner

    second = find_winner(table_of(study), "maximize")
    assert second is not None and second.checkpoint is not None
    assert second.checkpoint.path != result.checkpoint and second.value <= (result.value or 0)
