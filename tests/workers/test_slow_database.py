"""A database that is healthy and far away: it costs time, and no trial."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import objectives
import optuna
import pytest
from sqlalchemy.engine import make_url
from tables import table_of, wait_until

from benchmarks.support.network import Proxy
from optuna_deadline.elastic import ElasticWorker, agree
from optuna_deadline.options import WorkerOptions
from optuna_deadline.study.terms import Given

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgres,
    pytest.mark.nightly,
]
SLOTS = 4


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    """What lies between the worker and its database."""
    port = make_url(postgres_url).port
    assert port is not None
    with Proxy(port) as proxy:
        yield proxy
        proxy.flow()


@pytest.mark.parametrize("milliseconds", [5, 35, 150])
def test_trials_that_report_often_are_neither_lost_nor_trained_again(
    postgres_url: str,
    proxy: Proxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    milliseconds: float,
) -> None:
    """Four that report and save five times a second, for longer than their leases last."""
    monkeypatch.setenv("RANK_LOG", str(tmp_path / "steps"))
    sampler = optuna.samplers.RandomSampler(seed=1)
    near = optuna.create_study(study_name="study", storage=postgres_url, sampler=sampler)
    table = table_of(near)
    url = make_url(postgres_url).set(port=proxy.port).render_as_string(hide_password=False)
    study = optuna.load_study(study_name="study", storage=url, sampler=sampler)
    terms = agree(study, "20m", Given("fifo", {"n_trials": SLOTS}))
    worker = ElasticWorker(
        study,
        objectives.noted_for_long,
        terms,
        WorkerOptions(cpus=SLOTS, checkpoints=tmp_path, dashboard=False),
        ttl=12,
        grace=4,
    )
    proxy.delay(milliseconds / 2000)  # on the way there and on the way back
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        wait_until(lambda: _least(table.reports()) >= 60, 200, every=0.5)
    finally:
        worker.leave("the test is over")
        thread.join(150)
    assert not thread.is_alive()
    assert {row.outcome for row in table.segments()} <= {"shutdown", "pause"}, "none was lost"
    made = Counter(tuple(map(int, line.split())) for line in _lines(tmp_path / "steps"))
    assert set(made.values()) == {1}, "a step was trained again"
    assert {(row.number, row.step) for row in table.reports()} == set(made)
    for trial in near.get_trials():
        steps = {step for number, step in made if number == trial.number}
        assert set(trial.intermediate_values) == steps
        assert table.checkpoints(trial.number)[0].step == max(steps)


def _least(rows: list[object]) -> int:
    """How many reports the trial with the fewest has, once there are as many trials as slots."""
    counted = Counter(row.number for row in rows)  # type: ignore[attr-defined]
    return min(counted.values()) if len(counted) == SLOTS else 0


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()
