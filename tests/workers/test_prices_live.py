"""Hosts of two types and prices that change, with real workers: the budget holds."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import objectives
import optuna
import pytest
from forked import WorkerProcess
from tables import table_of, wait_until

import optuna_deadline
from optuna_deadline import Price
from optuna_deadline.allocation.records import Event
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.cli.setting import set_price
from optuna_deadline.elastic import agree
from optuna_deadline.errors import DeadlineError
from optuna_deadline.planning.billing.invoice import RELEASE_SECONDS
from optuna_deadline.planning.billing.ledger import BillingLedger
from optuna_deadline.planning.billing.price_schedule import tariff_of
from optuna_deadline.study.terms import Given, Terms
from optuna_deadline.values.budgets import make_budget

pytestmark = pytest.mark.nightly_but(r"^$")

Start = Callable[..., WorkerProcess]
CHEAP, DEAR = 3600.0, 3 * 3600.0  # a second of a slot costs 1, or 3


@pytest.fixture
def study(postgres_url: str) -> optuna.Study:
    sampler = optuna.samplers.RandomSampler(seed=1)
    return optuna.create_study(
        study_name="study", storage=postgres_url, direction="maximize", sampler=sampler
    )


def agreed(study: optuna.Study, budget: float, deadline: str) -> Terms:
    money = make_budget(budget, {"cheap": CHEAP, "dear": DEAR})
    return agree(study, deadline, Given("fifo", {"n_trials": 8}, budget=money))


def paid(events: Iterable[Event]) -> float:
    """What was wanted or held cost, from the audit alone and second by second."""
    price = {"cheap": 1.0, "dear": 3.0}
    wanted, held, total, before = Counter[str](), dict[int | None, str](), 0.0, 0.0
    types: dict[str | None, str] = {}
    for event in sorted(events, key=lambda event: event.id):
        slots = wanted | Counter(held.values())
        rate = sum(price[kind] * count for kind, count in slots.items())
        total += rate * (event.at - before) if before else 0.0
        before = event.at
        if event.kind == "register":
            types[event.worker] = str(event.detail["type"])
        elif event.kind == "price":
            price[str(event.detail["type"])] = float(str(event.detail["per_hour"])) / 3600
        elif event.kind == "pool":
            wanted = Counter(event.detail.get("types"))  # type: ignore[arg-type]
        elif event.kind == "settle":
            wanted = Counter()
        elif event.kind == "acquire":
            held[event.slot] = types[event.worker]
        elif event.kind in ("release", "reap"):
            held.pop(event.slot, None)
    return total


def told(table: AllocationTable, terms: Terms) -> float:
    assert terms.budget is not None
    ledger = BillingLedger(table, tariff_of(terms.budget, terms.started))
    ledger.read(table.now())
    return ledger.spent(table.now())


def training_on(table: AllocationTable) -> set[str]:
    """The hosts on which slots are held."""
    return {slot.host for slot in table.slots() if slot.holder is not None}


@pytest.mark.slow
@pytest.mark.postgres
def test_a_price_that_rises_shrinks_the_pool_and_the_budget_holds(
    study: optuna.Study, postgres_url: str, start_worker: Start, tmp_path: Path
) -> None:
    terms = agreed(study, 200, "42s")
    table = table_of(study)
    workers = [
        start_worker(
            postgres_url, "slow", RANK_LOG=str(tmp_path / "pids"),
            OPTUNA_DEADLINE_HOST=f"{kind}-host", OPTUNA_DEADLINE_HOST_TYPE=kind,
        )
        for kind in ("cheap", "dear")
    ]  # fmt: skip
    wait_until(lambda: training_on(table) == {"cheap-host", "dear-host"})
    assert "the money lasts until" in set_price(study, "dear=43200usd")
    wait_until(lambda: training_on(table) == {"cheap-host"})
    assert [worker.wait(60) for worker in workers] == [0, 0]
    sizes = [e.detail["types"] for e in table.events(kinds=["pool"]) if e.detail.get("types")]
    assert {"cheap": 1, "dear": 1} in sizes and sizes[-1] == {"cheap": 1}
    spent = told(table, terms)
    begun = 12 - 3  # the second that had begun when the price rose is paid as it was
    assert 30 < paid(table.events()) <= spent + begun + 1e-6 and spent <= 200
    assert all(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))


@pytest.mark.slow
@pytest.mark.postgres
def test_a_price_that_rises_when_the_planner_is_dead_ends_the_study_within_its_budget(
    study: optuna.Study, postgres_url: str, start_worker: Start, tmp_path: Path
) -> None:
    terms = agreed(study, 250, "60s")
    table = table_of(study)
    workers = {
        worker.pid: worker
        for worker in [
            start_worker(
                postgres_url, "slow", RANK_LOG=str(tmp_path / "pids"), ttl=25, grace=2,
                OPTUNA_DEADLINE_HOST=f"{kind}-host", OPTUNA_DEADLINE_HOST_TYPE=kind,
            )
            for kind in ("cheap", "dear")
        ]
    }  # fmt: skip
    wait_until(lambda: training_on(table) == {"cheap-host", "dear-host"})
    ruler = table.events(kinds=["elect"])[-1].worker
    [pid] = [row.pid for row in table.workers() if row.id == ruler]
    workers.pop(pid).send_signal(signal.SIGKILL)
    began = table.now()
    set_price(study, f"dear={10 * DEAR}")
    end = table.orders("").end
    assert end < began + 10 and end < terms.deadline
    [left] = workers.values()
    assert left.wait(90) == 0
    events = table.events()
    own = {row.slot for row in events if row.kind == "reap"}
    last = max(e.at for e in events if e.kind == "release" and e.slot not in own)
    assert last <= end + RELEASE_SECONDS
    settled = next(e.at for e in events if e.kind == "settle")
    assert settled > end and paid(e for e in events if e.at <= end) <= told(table, terms) + 1e-6
    assert told(table, terms) <= 250


@pytest.mark.slow
@pytest.mark.postgres
def test_whole_units_least_times_and_start_ups_are_within_the_budget(
    study: optuna.Study, tmp_path: Path
) -> None:
    price = Price(CHEAP, granularity=5.0, minimum=10.0, startup=3.0)
    result = optuna_deadline.run(
        study,
        objectives.elastic,
        cpus=4,
        deadline="30s",
        budget=70,
        price={"cheap": price, "dear": DEAR},
        checkpoints=tmp_path,
        policy="seer",
        worker=optuna_deadline.WorkerOptions(oversubscribe=True, host_type="cheap"),
    )
    assert result.settled and result.spent is not None
    assert result.spent % 5 == pytest.approx(0) and 20 <= result.spent <= 70
    assert paid(table_of(study).events()) <= result.spent + 1e-6


@pytest.mark.postgres
def test_a_host_without_a_price_is_refused_at_its_start(study: optuna.Study) -> None:
    agreed(study, 200, "40s")
    with pytest.raises(DeadlineError, match="this host says none"):
        optuna_deadline.run(study, objectives.elastic, cpus=1)
    with pytest.raises(DeadlineError, match="no price for the host type 'new'"):
        optuna_deadline.run(
            study,
            objectives.elastic,
            cpus=1,
            worker=optuna_deadline.WorkerOptions(host_type="new"),
        )
    assert "a slot of new costs 7" in set_price(study, "new=7")
    with pytest.raises(DeadlineError, match=r"by host type .*write TYPE=PRICE"):
        set_price(study, "7")
    with pytest.raises(DeadlineError, match="in usd and the price in eur"):
        set_price(study, "new=7eur")
    table = table_of(study)
    assert [event.detail["type"] for event in table.events(kinds=["price"])] == ["new"]
