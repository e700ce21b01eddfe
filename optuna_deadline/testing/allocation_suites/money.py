"""The size of the pool that a study pays for, and the end of its money."""

from __future__ import annotations

import pytest

from optuna_deadline.errors import LeaseLost
from optuna_deadline.testing.worlds import DEADLINE, AllocationWorld


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
