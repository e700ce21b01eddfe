"""Real workers with a slot each train one trial together; on one machine, others on several."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from allocation.suite.world import assert_whole
from endings import end_within
from forked import WorkerProcess
from tables import table_of, wait_until

from optuna_deadline.elastic import agree
from optuna_deadline.errors import DeadlineError
from optuna_deadline.rank.rendezvous import RankServer, interface_of, own_address
from optuna_deadline.study.terms import Given

pytestmark = pytest.mark.nightly_but(r"postgres")

Start = Callable[..., WorkerProcess]


@pytest.mark.slow
def test_ranks_of_two_workers_are_one_trial(
    study: optuna.Study, storage_url: str, start_worker: Start, tmp_path: Path
) -> None:
    agree(study, "10m", Given("fifo", {"n_trials": 1}))
    table, log = table_of(study), tmp_path / "ranks"
    workers = [
        start_worker(
            storage_url, "logged_for_long", multi_node=True,
            RANK_LOG=str(log), OPTUNA_DEADLINE_ADDRESS="127.0.0.1",
        )
        for _ in range(2)
    ]  # fmt: skip
    wait_until(lambda: len(table.workers()) == 2 and table.trials(), 90)
    assert table.pin(0, 2)

    def ranks() -> list[dict[str, Any]]:
        lines = log.read_text().splitlines() if log.exists() else []
        found = [facts for facts in map(json.loads, lines) if facts["world"] == 2]
        newest = max((facts["fence"] for facts in found), default=0)
        return [facts for facts in found if facts["fence"] == newest]

    wait_until(lambda: len(ranks()) == 2)
    one, two = sorted(ranks(), key=lambda facts: facts["rank"])
    assert (one["rank"], two["rank"]) == (0, 1)
    assert one["params"] == two["params"] == two["seen"]
    assert one["parent"] != two["parent"]
    segment = next(row for row in table.segments() if row.fence == one["fence"])
    assert (segment.slots, segment.workers) == (2, 2)
    wait_until(lambda: len(table.reports(number=0)) > 12)
    end_within(table, 3)
    assert [worker.wait(60) for worker in workers] == [0, 0]
    [trial] = study.get_trials(deepcopy=False)
    steps = sorted(trial.intermediate_values)
    assert steps == list(range(len(steps)))
    assert all(slot.holder is None for slot in table.slots())
    assert_whole(table.events())


def test_an_address_that_is_not_this_hosts_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeadlineError, match=r"203\.0\.113\.9 .* OPTUNA_DEADLINE_ADDRESS"):
        RankServer("203.0.113.9", lambda *_: False)
    monkeypatch.setenv("OPTUNA_DEADLINE_ADDRESS", "10.1.2.3")
    assert own_address("db") == "10.1.2.3"
    assert interface_of("203.0.113.9") is None
