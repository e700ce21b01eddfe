"""A worker dies or freezes at every place that matters, and another one finishes the study."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import optuna
import pytest
from endings import end_within
from forked import Job, WorkerProcess
from forking import start_server
from optuna.trial import TrialState
from tables import table_of, wait_until

from benchmarks.support.postgres import EmbeddedPostgres, PostgresServer
from optuna_deadline._crashpoints import _parse
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.files import intact
from optuna_deadline.elastic import agree
from optuna_deadline.planning.best_model import find_winner
from optuna_deadline.study.terms import Given
from optuna_deadline.values.budgets import Budget
from optuna_deadline.values.prices import Price

pytestmark = pytest.mark.nightly_but(
    r"(acquire|add_checkpoint|settle|meet)\.commit:exit|tell\.before|release\.committed|acquire\.commit:freeze"
)

PACKAGE = Path(__file__).parents[2] / "optuna_deadline"

#: Transitions; each has a point before its commit and one after it.
TRANSITIONS = (
    "register", "acquire", "release", "reap", "add_reports", "add_checkpoint", "open_trial",
    "write_plan", "conclude", "retire", "mark_told", "drop_checkpoints", "settle", "resize_pool",
    "lend", "meet", "give_back",
)  # fmt: skip
#: Of a gang over two workers, whichever of them it falls to.
OF_GANGS = ("meet", "give_back")
#: Points of their own; the first four are in a rank, whose worker lives on.
IN_RANKS = ("checkpoint.written", "checkpoint.synced", "checkpoint.renamed", "checkpoint.publish")
PLACES = (*IN_RANKS, "launch.forked", "register.trust", "tell.before", "tell.after")
DEATHS = (*(f"{name}.{when}" for name in TRANSITIONS for when in ("commit", "committed")), *PLACES)
#: Where a worker freezes instead and comes back when all is over: with locks held, and with none.
FREEZES = (
    "acquire.commit", "acquire.committed", "add_reports.commit", "add_checkpoint.commit",
    "write_plan.commit", "release.commit", "launch.forked", "resize_pool.commit", "lend.commit",
)  # fmt: skip
CASES = [*(f"{name}:exit" for name in DEATHS), *(f"{name}:freeze" for name in FREEZES)]
AT_ONCE = 4  # most of a case is waiting for leases to run out
EVERY = 0.2  # seconds between two looks: four cases look at once
BUDGET = Budget(1000.0, Price(3600.0))  # slot-seconds: more than a case takes
POOL = "lab"
ENQUEUED = {"x": 0.5}  # a person's wish, in the queue of each study


def test_every_crash_point_is_exercised() -> None:
    code = "\n".join(path.read_text() for path in sorted(PACKAGE.rglob("*.py")))
    assert set(re.findall(r"""crashpoint\("([\w.]+)"\)""", code)) == set(PLACES)
    named = re.findall(r"""(?:_tx|_alone)\("(\w+)"[,)]""", code)
    assert set(named) == set(TRANSITIONS)


def test_a_crash_point_is_armed_by_name_and_action() -> None:
    assert _parse(None) is None
    assert _parse("acquire.commit:exit") == ("acquire.commit", "exit", "")
    assert _parse("tell.after:freeze:/tmp/once") == ("tell.after", "freeze", "/tmp/once")
    with pytest.raises(ValueError, match="must end in :exit or :freeze"):
        _parse("acquire.commit:explode")


@dataclass
class Aftermath:
    """One case: its studies, the worker that was struck, and those that went on."""

    studies: list[optuna.Study]
    fired: bool
    struck: int
    finished: list[int]
    words: str


@pytest.fixture(scope="module")
def aftermaths(
    request: pytest.FixtureRequest,
    postgres: PostgresServer,
    postgres_template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], Aftermath]]:
    """All chosen cases, some at a time, each in a database of its own."""
    chosen = [
        item.callspec.params["case"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
        if hasattr(item, "callspec")
    ]
    names = {case: f"od_crash_{os.getpid()}_{index}" for index, case in enumerate(chosen)}
    start_server()
    copying = threading.Lock()  # one at a time gets a copied template, and a folder

    def play(case: str) -> Aftermath:
        with copying:
            folder = tmp_path_factory.mktemp("case")
            url = postgres.create_database(names[case], postgres_template)
        return _play(case, url, folder)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        futures = {case: threads.submit(play, case) for case in chosen}
        yield lambda case: futures[case].result()
        threads.shutdown(cancel_futures=True)
    if not isinstance(postgres, EmbeddedPostgres):  # ours takes them along when it ends
        for name in names.values():
            postgres.drop_database(name)


def _play(case: str, url: str, folder: Path) -> Aftermath:
    transition = case.partition(".")[0]
    study = _create(url, "study", transition)
    studies, table = [study], table_of(study, POOL)
    marker, log = folder / "fired", folder / "log"
    processes: list[WorkerProcess] = []

    def start(name: str, cpus: int, **environment: str) -> WorkerProcess:
        across = transition in OF_GANGS
        objective = "logged_for_long" if across else "brief"
        job = Job(
            url, objective, folder, study=name, pool=POOL, cpus=cpus, ttl=6, grace=2,
            multi_node=across,
        )  # fmt: skip
        if across:
            ranks = str(folder / "ranks")
            environment |= {"RANK_LOG": ranks, "OPTUNA_DEADLINE_ADDRESS": "127.0.0.1"}
        processes.append(WorkerProcess(job, log, **environment))
        return processes[-1]

    def strike(cpus: int) -> WorkerProcess:
        return start("study", cpus, OPTUNA_DEADLINE_CRASHPOINT=f"{case}:{marker}")

    def lent(study: optuna.Study) -> bool:
        return any(slot.lent_to == study._study_id for slot in table.slots())

    try:
        if transition == "lend":  # another study leads the pool, until its worker leaves
            studies.append(_create(url, "neighbour", transition))
            leader = start("neighbour", 2)
            wait_until(lambda: lent(studies[1]), every=EVERY)
        mates = [strike(1)] if transition in OF_GANGS else []
        struck = strike(1 if mates else 2)
        hit = lambda: marker.exists() or struck.poll() is not None  # noqa: E731
        if transition == "lend":
            wait_until(lambda: hit() or lent(study), every=EVERY)
            leader.terminate()
        elif mates:
            wait_until(lambda: len(table.workers()) == 2 and table.reports(), every=EVERY)
            (number,) = {row.number for row in table.reports()}  # 0, or a planner was replaced
            assert table.pin(number, 2)
            wait_until(lambda: marker.exists() or _ranks_of_two(table), every=EVERY)
            table.pin(number, 1)
            wait_until(lambda: any(one.poll() is not None for one in (struck, *mates)))
            if struck.poll() is None:
                struck, mates = mates[0], [struck]
        else:
            wait_until(lambda: hit() or table.checkpoints(), every=EVERY)
            if not hit():  # the later points come at the end, so let it come
                end_within(table, 4)
        wait_until(hit)
        others = [start(one.study_name, len(studies)) for one in studies]
        for one, other in zip(studies, others, strict=True):
            # A model, and the trial that a frozen worker may hold until it is reaped.
            wait_until(partial(_goes_on, other, table_of(one, POOL)), every=EVERY)
        # With a model in hand, however slow the machine is; the slot of a mate that died is free
        # once its lease has run out, which the study does not wait for.
        for one in studies:
            end_within(table_of(one, POOL), 14 if transition in OF_GANGS else 6)
        finished = [other.wait(60) for other in (*others, *mates)]
        struck.send_signal(signal.SIGCONT)
        end = struck.wait(30)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return Aftermath(studies, marker.exists(), end, finished, log.read_text())


def _goes_on(worker: WorkerProcess, table: AllocationTable) -> bool:
    return worker.poll() is not None or bool(table.checkpoints() and table.reports(number=0))


def _ranks_of_two(table: AllocationTable) -> bool:
    """Whether a segment of two workers has come to its first step."""
    return any(row.workers == 2 and row.startup is not None for row in table.segments())


def _create(url: str, name: str, transition: str) -> optuna.Study:
    """A study whose terms lead to the transition."""
    sampler = optuna.samplers.RandomSampler(seed=1)
    study = optuna.create_study(
        study_name=name, storage=url, direction="maximize", sampler=sampler
    )
    study.enqueue_trial(ENQUEUED)
    # Promotion leaves trials paused on every rung; the planner concludes them at the end.
    policy = "asha_promote" if transition in ("conclude", "retire") else None
    parameters = {}
    if transition in OF_GANGS:
        policy, parameters = "fifo", {"n_trials": 1}
    agree(
        study,
        "100s",
        Given(policy, parameters, budget=BUDGET if transition == "resize_pool" else None),
    )
    return study


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost(case: str, aftermaths: Callable[[str], Aftermath]) -> None:
    after = aftermaths(case)
    place, _, action = case.partition(":")
    assert after.fired, f"never got to {place}:\n{after.words}"
    lives = action == "freeze" or place in IN_RANKS
    assert after.struck == (0 if lives else 137), after.words
    assert set(after.finished) == {0}, after.words
    for study in after.studies:
        _check(study)


def _check(study: optuna.Study) -> None:
    table = table_of(study, POOL)
    trials = study.get_trials(deepcopy=False)
    assert trials and all(trial.state.is_finished() for trial in trials)
    reports = table.reports()
    tried = [trial.params["x"] for trial in trials if trial.intermediate_values]
    assert ENQUEUED["x"] in tried
    for trial in trials:  # Optuna and the table know the same, with no step lost or twice
        steps = sorted(row.step for row in reports if row.number == trial.number)
        assert steps == list(range(len(steps))) == sorted(trial.intermediate_values)
    assert all(slot.holder is None for slot in table.slots())
    assert all(not line.alive and line.end_reported for line in table.trials())
    assert [event.kind for event in table.events()].count("settle") == 1
    assert not table.orders("").pool_slots  # who pays for slots pays for none any more
    winner = find_winner(table, "maximize")
    assert winner is not None and winner.checkpoint is not None and intact(winner.checkpoint)
    best = [trial for trial in trials if trial.state is TrialState.COMPLETE]
    assert winner.number in {trial.number for trial in best}
