"""How many slots a budget buys, and how it goes on after a rest and after an extension."""

from __future__ import annotations

import math
from collections.abc import Callable

import optuna
import pytest

from optuna_deadline.allocation.database.opening import open_table
from optuna_deadline.allocation.records import Orders
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.errors import DeadlineError
from optuna_deadline.planning.billing.budget import change_budget, change_price
from optuna_deadline.planning.billing.ledger import BillingLedger
from optuna_deadline.planning.billing.price_schedule import tariff_of
from optuna_deadline.planning.planner import Planner
from optuna_deadline.policies import Pause, Plan, Run, Snapshot
from optuna_deadline.simulation.environment import CountedTrials
from optuna_deadline.study import agreement
from optuna_deadline.study import rows as studies
from optuna_deadline.study.terms import Given
from optuna_deadline.values.budgets import Budget
from optuna_deadline.values.prices import Price

HOUR = 3600.0


class Fill:
    """A slot for each trial and a trial for each slot; it asks for no pool."""

    def plan(self, snapshot: Snapshot) -> Plan:
        alive = [trial.number for trial in snapshot.trials if trial.alive]
        room = snapshot.capacity
        runs = {n: Run(1, "fits") if i < room else Pause("waits") for i, n in enumerate(alive)}
        return Plan(orders=runs, start=max(0, room - len(alive)), gate_open=True)


class Paid:
    """A study with a budget, at a time that a test moves."""

    def __init__(self, budget: Budget, started: float = 0.0, hours: float = 1.0) -> None:
        self.now, self.started, self.budget = started, started, budget
        self.table: AllocationTable = MemoryTable(
            "pool", now=lambda: self.now, started=started, deadline=started + hours * HOUR
        )

    def planner(self, me: str, table: AllocationTable | None = None) -> Planner:
        return Planner(
            CountedTrials(),
            table or self.table,
            Fill(),
            direction="maximize",
            worker_id=me,
            clock=lambda: self.now,
            budget_account=self.ledger(),
        )

    def ledger(self) -> BillingLedger:
        ledger = BillingLedger(self.table, tariff_of(self.budget, self.started))
        ledger.read(self.now)
        return ledger

    @property
    def spent(self) -> float:
        return self.ledger().spent(self.now)

    @property
    def orders(self) -> Orders:
        return self.table.orders("")

    def look(self, planner: Planner, times: int = 3) -> Orders:
        for _ in range(times):
            planner.tick()
            self.now += 1
        return self.orders


class Stored(Paid):
    """The same in a file, where its deadline can be moved."""

    def __init__(self, url: str, budget: Budget, hours: float = 1.0) -> None:
        super().__init__(budget)
        self.study = optuna.create_study(storage=url, study_name="s", direction="maximize")
        self.database = open_table(self.study)
        fixed = agreement.fix(self.database, self.study, f"{hours}h", Given(budget=budget))
        self.now, self.started = fixed.started, fixed.started
        self.table = self.open()

    def open(self) -> AllocationTable:
        return AllocationTable(self.database, "s", self.study._study_id, now=lambda: self.now)

    def extend(self, hours: float) -> None:
        """To so many hours from its start."""
        with self.database.each_alone(studies.ANY_STUDY) as tx:
            at = self.started + hours * HOUR
            assert studies.postpone(tx, self.study._study_id, at, None)


@pytest.mark.parametrize("started", [0.0, 1_790_000_000.3])
@pytest.mark.parametrize(
    "price", [Price(1.0), Price(1.0, granularity=60.0), Price(1.0, granularity=HOUR)]
)
def test_a_budget_of_exactly_so_many_slots_buys_them_all(started: float, price: Price) -> None:
    paid = Paid(Budget(4.0, price), started)
    paid.table.register("a", "host", 1, [], 8)
    orders = paid.look(paid.planner("a"))
    assert orders.pool_slots == 4
    assert orders.deadline - 3 <= orders.end <= orders.deadline


@pytest.mark.parametrize("price", [Price(1.0), Price(1.0, granularity=60.0)])
def test_an_exact_budget_keeps_its_slots_when_it_is_reckoned_again(price: Price) -> None:
    paid = Paid(Budget(4.0, price), 1_790_000_000.3)
    paid.table.register("a", "host", 1, [], 8)
    planner = paid.planner("a")
    for minute in range(1, 50):
        paid.now = paid.started + 60 * minute + 0.7
        paid.table.renew("a", [])
        paid.look(planner, 1)
        if minute == 20:
            paid.table.register("b", "other", 2, [], 2)  # and leaves by its lease
        if minute == 30:
            planner = paid.planner("a")
        assert paid.orders.pool_slots == 4, minute
    assert paid.orders.end >= paid.orders.deadline - 3
    paid.now = paid.orders.deadline
    assert paid.spent <= 4.0


def test_a_budget_of_a_little_less_buys_one_slot_less() -> None:
    paid = Paid(Budget(3.98, Price(1.0)))
    paid.table.register("a", "host", 1, [], 8)
    assert paid.look(paid.planner("a")).pool_slots == 3


@pytest.fixture
def paid() -> Paid:
    """A slot of four for twenty hours, an hour of which has gone."""
    paid = Paid(Budget(20.0, Price(1.0)), hours=24)
    paid.table.register("a", "host", 1, [], 4)
    planner = paid.planner("a")
    assert paid.look(planner).pool_slots == 1
    paid.now += HOUR
    paid.table.renew("a", [])
    paid.look(planner)
    assert paid.spent == pytest.approx(1.0, abs=0.01)
    return paid


def goes_on(paid: Paid, hours: float) -> None:
    """Another worker comes after the night, and the study goes on with what is left."""
    paid.now += hours * HOUR
    lasts = paid.now + 19 * HOUR
    paid.table.register("b", "host", 2, [], 4)
    assert paid.spent == pytest.approx(1.0, abs=0.02)
    orders = paid.look(paid.planner("b"))
    assert not orders.settled
    assert orders.pool_slots == (1 if hours < 18 else 4), "of what is left, until the deadline"
    assert orders.end == pytest.approx(min(24 * HOUR, lasts), abs=60)
    assert paid.ledger().wanted == {"": orders.pool_slots}


@pytest.mark.parametrize("hours", [2, 12, 22])
def test_nothing_is_paid_for_between_the_last_worker_and_the_next(
    paid: Paid, hours: float
) -> None:
    paid.table.leave("a")
    assert (paid.orders.pool_slots, paid.orders.end) == (0, paid.orders.deadline)
    goes_on(paid, hours)


@pytest.mark.parametrize("hours", [2, 12, 22])
def test_nothing_is_paid_for_once_the_last_workers_lease_is_over(paid: Paid, hours: float) -> None:
    goes_on(paid, hours)


def test_the_workers_of_another_study_reap_it_too(paid: Paid) -> None:
    assert isinstance(paid.table, MemoryTable)
    other = MemoryTable("pool", 2, now=lambda: paid.now, database=paid.table.database)
    other.register("c", "elsewhere", 3, [], 1)
    paid.now += HOUR
    other.reap()
    assert paid.spent == pytest.approx(1.0, abs=0.02)
    goes_on(paid, 2)


def test_a_price_that_is_told_at_rest_holds_when_the_study_goes_on(paid: Paid) -> None:
    paid.table.leave("a")
    paid.now += 3 * HOUR
    change_price(paid.table, paid.budget, paid.started, "", Price(2.0))
    paid.now += 10 * HOUR
    paid.table.register("b", "host", 2, [], 4)
    assert paid.spent == pytest.approx(1.0, abs=0.02)
    orders = paid.look(paid.planner("b"))
    assert (orders.settled, orders.pool_slots) == (False, 1)
    assert orders.end == pytest.approx(min(orders.deadline, paid.now + 9.5 * HOUR), abs=60)


def test_a_larger_budget_buys_at_the_next_plan_and_a_smaller_one_ends_sooner(
    sqlite_url: str,
) -> None:
    paid = Stored(sqlite_url, Budget(1.0, Price(1.0)))
    paid.table.register("a", "host", 1, [], 4)
    planner = paid.planner("a")
    assert paid.look(planner).pool_slots == 1
    change_budget(paid.table, paid.budget, paid.started, 4.0)
    assert paid.look(planner).pool_slots == 4, "a planner that knows the former budget follows"
    known = agreement.read(paid.database, paid.study)
    assert known is not None and known.budget == Budget(4.0, Price(1.0))

    paid.now += HOUR / 4
    end = change_budget(paid.table, known.budget, paid.started, 2.0)
    assert end == pytest.approx(paid.started + HOUR / 2, abs=20)
    assert paid.orders.end == pytest.approx(end, abs=1), "without a planner, too"
    with pytest.raises(DeadlineError, match=r"has spent 1\.\d+ usd already: give a budget above"):
        change_budget(paid.table, known.budget, paid.started, 0.5)


def test_what_one_of_two_workers_leaves_is_paid_for(paid: Paid) -> None:
    paid.table.register("b", "other", 2, [], 4)
    paid.table.leave("a")
    assert paid.orders.pool_slots == 1
    paid.now += 10
    assert paid.spent == pytest.approx(1.0, abs=0.01)
    paid.now += HOUR
    assert paid.spent == pytest.approx(2.0, abs=0.02)


def test_a_study_with_a_budget_is_extended_after_its_end(sqlite_url: str) -> None:
    paid = Stored(sqlite_url, Budget(100.0, Price(1.0)))
    paid.table.register("a", "host", 1, [], 2)
    planner = paid.planner("a")
    assert paid.look(planner).pool_slots == 2
    paid.now = paid.started + HOUR - 1
    paid.table.renew("a", [])
    assert paid.look(planner).settled
    paid.table.leave("a")
    paid.extend(3)
    paid.now += HOUR
    paid.table.register("b", "host", 2, [], 2)
    orders = paid.look(paid.planner("b"))
    assert (orders.settled, orders.pool_slots, orders.end) == (False, 2, orders.deadline)
    assert any(line.alive for line in paid.table.trials())


def test_a_study_with_a_budget_is_extended_while_no_worker_is_there(sqlite_url: str) -> None:
    paid = Stored(sqlite_url, Budget(20.0, Price(1.0)), hours=2)
    paid.table.register("a", "host", 1, [], 4)
    paid.look(paid.planner("a"))
    paid.extend(12)
    paid.now += 2.1 * HOUR
    paid.table.register("b", "host", 2, [], 4)
    orders = paid.look(paid.planner("b"))
    assert (orders.settled, orders.pool_slots, orders.end) == (False, 2, orders.deadline)


@pytest.mark.parametrize("elected", ["a", "b"])
def test_after_an_extension_the_pool_is_sized_anew(sqlite_url: str, elected: str) -> None:
    paid = Stored(sqlite_url, Budget(4.1, Price(1.0)))
    paid.table.register("a", "host", 1, [], 8)
    planner = paid.planner("a")
    assert paid.look(planner).pool_slots == 4
    paid.extend(4)
    if elected == "b":
        paid.table.register("b", "host", 2, [], 8)
        paid.table.leave("a")
        planner = paid.planner("b")
    orders = paid.look(planner)
    assert orders.pool_slots == 1
    assert orders.end == pytest.approx(orders.deadline, abs=3)


def test_no_trial_leaves_its_slots_for_an_extension(sqlite_url: str) -> None:
    paid = Stored(sqlite_url, Budget(100.0, Price(1.0)))
    paid.table.register("a", "host", 1, [], 4)
    planner = paid.planner("a")
    paid.look(planner)
    paid.extend(4)
    for _ in range(3):
        paid.look(planner, 1)
        assert [line.mode for line in paid.table.trials()] == ["run"] * 4


@pytest.mark.parametrize("after", ["orders", "resize"])
def test_an_extension_while_the_study_closes_is_not_lost(sqlite_url: str, after: str) -> None:
    paid = Stored(sqlite_url, Budget(100.0, Price(1.0)))
    paid.table.register("a", "host", 1, [], 2)
    slow = paid.open()
    planner = paid.planner("a", slow)
    grants = []
    paid.look(planner)
    for line in slow.trials():
        grants.append(slow.acquire("a", line.number, slow.free_slots("a")[:1]))
    paid.now = paid.started + HOUR - 1
    slow.renew("a", [pair for grant in grants if grant for pair in grant.slots])
    if after == "orders":
        _then(slow, "orders", lambda: paid.extend(3))
        planner.tick()
    else:
        planner.tick()
        assert paid.orders.pool_slots == 0
        paid.extend(3)
    orders = paid.look(planner)
    assert (orders.settled, orders.pool_slots, orders.end) == (False, 2, orders.deadline)


def _then(table: AllocationTable, name: str, what: Callable[[], None]) -> None:
    """Let something happen once, right after an answer of the table's."""
    answer = getattr(table, name)

    def once(*given: object) -> object:
        found = answer(*given)
        setattr(table, name, answer)
        what()
        return found

    setattr(table, name, once)


def test_an_extension_of_a_study_whose_money_is_gone_buys_nothing(sqlite_url: str) -> None:
    paid = Stored(sqlite_url, Budget(1.0, Price(1.0)), hours=4)
    paid.table.register("a", "host", 1, [], 1)
    planner = paid.planner("a")
    paid.look(planner)
    paid.now = paid.started + HOUR
    paid.table.renew("a", [])
    assert paid.look(planner).settled
    paid.extend(8)
    paid.now += 60
    paid.table.register("b", "host", 2, [], 1)
    orders = paid.look(paid.planner("b"), 5)
    assert orders.settled and paid.spent <= 1.0 and not math.isinf(orders.end)
