"""The size of the pool that a study pays for, and the end of its money."""

from __future__ import annotations

import pytest

from optuna_deadline.allocation.records import About
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.errors import LeaseLost
from optuna_deadline.testing.allocation.world import DEADLINE, GRACE, STARTED, TTL, AllocationWorld


class MoneySuite:
    """What a store keeps of a study's budget."""

    def test_without_money_the_deadline_is_the_end(self, world: AllocationWorld) -> None:
        world.join("a")
        orders = world.table().orders("a")
        assert (orders.pool_slots, orders.funds_end, orders.end) == (None, None, DEADLINE)

    def test_each_change_of_the_pool_is_audited_once(self, world: AllocationWorld) -> None:
        world.join("a")
        table = world.table()
        term = table.elect("a")
        assert term is not None
        end = world.time + 100
        for slots, funds_end in ((2, end), (2, end), (2, end + 5), (1, end + 5)):
            table.resize_pool("a", term, slots, funds_end)
            orders = table.orders("a")
            assert (orders.pool_slots, orders.end) == (slots, funds_end)
        log = table.events(kinds=["pool"])
        assert [
            (row.detail["before"], row.detail["slots"], row.detail["until"]) for row in log
        ] == [(0, 2, end), (2, 2, end + 5), (2, 1, end + 5)]

    def test_nothing_is_granted_once_the_money_is_gone(self, world: AllocationWorld) -> None:
        ids = world.join("a")
        number = world.plan("a")
        table = world.table()
        term = table.elect("planner")
        assert term is not None
        table.resize_pool("planner", term, 1, world.time + 10)
        world.time += 10
        assert table.acquire("a", number, ids[:1]) is None
        table.resize_pool("planner", term, 1, world.time + 10)
        assert table.acquire("a", number, ids[:1]) is not None

    def test_I6_an_old_term_buys_nothing(self, world: AllocationWorld) -> None:
        world.join("a")
        table = world.table()
        term = table.elect("a")
        assert term is not None
        with pytest.raises(LeaseLost):
            table.resize_pool("a", term + 1, 8, world.time + 10)
        assert table.orders("a").pool_slots is None

    def test_a_price_brings_the_end_forward_for_whoever_saw_what_stands(
        self, world: AllocationWorld
    ) -> None:
        world.join("a")
        table = world.table()
        term = table.elect("a")
        assert term is not None
        end = world.time + 100
        table.resize_pool("a", term, 2, end, {"big": 2})
        assert not table.set_price("big", 7.0, 1, end - 50, (1, end), {"big": 2})
        assert table.orders("a").funds_end == end
        assert table.set_price("big", 7.0, 1, end - 50, (2, end), {"big": 2})
        risen = table.orders("a").funds_end
        assert risen is not None and end - 51 < risen < end - 50
        assert table.set_price("big", 1.0, 1, end, (2, risen), {"big": 2})
        fallen = table.orders("a").funds_end
        assert fallen is not None and fallen < risen, "it is for the planner to move it later"
        prices = [row.detail["per_hour"] for row in table.events(kinds=["price"])]
        assert prices == [7.0, 1.0]

    def test_who_plans_by_the_price_before_writes_nothing(self, world: AllocationWorld) -> None:
        world.join("a")
        table = world.table()
        term = table.elect("a")
        assert term is not None
        assert table.set_price("", 7.0, 1, DEADLINE, (None, None))
        told = table.orders("a")
        assert told.pool_slots is None and told.funds_end is not None
        assert DEADLINE - 1 < told.funds_end < DEADLINE
        assert not table.resize_pool("a", term, 4, DEADLINE, seen=(None, None))
        assert table.orders("a").pool_slots is None
        assert table.resize_pool("a", term, 4, DEADLINE, seen=(None, told.funds_end))
        assert table.orders("a").pool_slots == 4

    def test_the_type_of_a_host_is_in_the_audit(self, world: AllocationWorld) -> None:
        world.join("a")
        table = world.table()
        table.register("b", "host", 1, [], 1, about=About(host_type="big"))
        said = {row.worker: row.detail.get("type") for row in table.events(kinds=["register"])}
        assert said == {"a": None, "b": "big"}

    def test_no_more_is_granted_than_is_paid_for(self, world: AllocationWorld) -> None:
        ids = world.join("a", cpus=3)
        first, second = world.plan("a"), world.plan("a")
        table = world.table()
        term = table.elect("planner")
        assert term is not None
        table.resize_pool("planner", term, 1, world.time + 100)
        grant = table.acquire("a", first, ids[:1])
        assert grant is not None
        assert table.acquire("a", second, ids[1:2]) is None, "a slot is free, but not paid for"
        table.resize_pool("planner", term, 2, world.time + 100)
        assert table.acquire("a", second, ids[1:2]) is not None

    def test_without_a_live_worker_a_study_rests(self, world: AllocationWorld) -> None:
        table = self._paying(world, "a", "b")
        table.leave("a")
        assert table.orders("b").pool_slots == 2
        table.leave("b")
        orders = table.orders("")
        assert (orders.pool_slots, orders.funds_end, orders.end) == (0, None, DEADLINE)
        world.time += 1000
        table.register("c", "host", 1, [], 1)
        table.leave("c")
        [rest] = table.events(kinds=["rest"])
        assert rest.detail["since"] == STARTED

    def test_a_newcomer_finds_a_study_at_rest_whose_workers_died(
        self, world: AllocationWorld
    ) -> None:
        table = self._paying(world, "a")
        world.time += TTL - 1
        table.register("b", "host", 1, [], 1)
        assert table.orders("b").pool_slots == 2, "the other one may live"
        world.time += 1000
        table.register("c", "host", 1, [], 1)
        assert (table.orders("c").pool_slots, table.orders("c").funds_end) == (0, None)
        [rest] = table.events(kinds=["rest"])
        assert rest.detail["since"] == STARTED + TTL - 1 + TTL

    def test_the_reaper_lets_a_study_rest_whose_workers_died(self, world: AllocationWorld) -> None:
        table = self._paying(world, "a")
        world.join("other", study="other")
        world.time += TTL + GRACE + 1
        world.table(study="other").reap()
        assert (table.orders("").pool_slots, table.orders("").funds_end) == (0, None)
        [rest] = table.events(kinds=["rest"])
        assert (rest.study_id, rest.detail["since"]) == (table.study_id, STARTED + TTL)
        world.table(study="other").reap()
        assert len(table.events(kinds=["rest"])) == 1

    def test_a_worker_that_is_known_to_have_ended_lets_its_study_rest(
        self, world: AllocationWorld
    ) -> None:
        table = self._paying(world, "a", "b")
        table.bury(["a"])
        assert table.orders("").pool_slots == 2
        world.time += 10
        table.bury(["b"])
        assert (table.orders("").pool_slots, table.orders("").funds_end) == (0, None)
        [rest] = table.events(kinds=["rest"])
        assert rest.detail["since"] == world.time

    def test_a_study_that_is_settled_or_free_does_not_rest(self, world: AllocationWorld) -> None:
        world.join("free", study="other")
        world.table(study="other").leave("free")
        table = self._paying(world, "a")
        term = table.elect("a")
        assert term is not None
        table.settle("a", term)
        table.leave("a")
        assert table.orders("").pool_slots == 2
        for store in (table, world.table(study="other")):
            assert store.events(kinds=["rest"]) == []

    @staticmethod
    def _paying(world: AllocationWorld, *workers: str) -> AllocationStore:
        """A study that pays for two slots, with these workers."""
        for name in workers:
            world.join(name)
        table = world.table()
        term = table.elect(workers[0])
        assert term is not None
        table.resize_pool(workers[0], term, 2, world.time + 100)
        return table
