"""Tests of gangs that span workers, and of the pool size that a study pays for."""

from __future__ import annotations

import pytest
from allocation.suite.world import (
    DEADLINE,
    GRACE,
    STARTED,
    TTL,
    AllocationWorld,
    assert_legal,
    checkpoint,
)

from optuna_deadline.allocation.records import Grant, MachineInfo, Rendezvous
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.errors import LeaseLost

MEETING = Rendezvous("10.0.0.1", 29500, 29501, "secret", "/shared/1-3.ckpt")


class GangSuite:
    """Gangs that span workers."""

    def test_a_gang_that_crosses_workers_is_taken_at_once(self, world: AllocationWorld) -> None:
        grant = _cross(world)
        table = world.table()
        ours, (theirs,) = grant.slots, grant.others
        assert (grant.size, len(ours), theirs.size) == (3, 1, 2)
        assert (theirs.worker, theirs.first_rank) == ("b", 1)
        holders = {row.id: (row.holder, row.fence, row.number, row.lease) for row in table.slots()}
        for slot, fence in ours:
            assert holders[slot] == ("a", fence, grant.number, world.time + TTL)
        for slot, fence in theirs.slots:
            assert holders[slot] == ("b", fence, grant.number, world.time + TTL)
        [planned] = table.trials()
        assert (planned.owner, planned.slots, planned.others) == ("a", 3, (("b", 2),))
        [segment] = table.segments()
        assert (segment.slots, segment.workers) == (3, 2)
        [start] = table.events(kinds=["start"])
        assert (start.worker, start.detail["others"]) == ("a", {"b": 2})
        assert_legal(table.events())

    def test_each_finds_its_part(self, world: AllocationWorld) -> None:
        grant = _cross(world)
        table = world.table()
        world.join("c", cpus=1)
        [hand] = table.memberships("b")
        assert (hand.number, hand.trial_id, hand.fence) == (grant.number, 100, grant.fence)
        assert (hand.leader, hand.size, hand.part) == ("a", 3, grant.others[0])
        assert hand.active and hand.rendezvous is None
        assert table.memberships("a") == [hand] and table.memberships("c") == []
        called = [table.orders(name).in_gangs for name in "abc"]
        assert called == [False, True, False]
        assert table.orders("b").trials == ()

    @pytest.mark.parametrize("lacking", ["taken", "silent", "drained", "unplanned", "short"])
    def test_no_slot_is_held_where_one_cannot_be_had(
        self, world: AllocationWorld, lacking: str
    ) -> None:
        world.join("a", cpus=1)
        theirs = world.join("b", cpus=2)
        table = world.table()
        number = world.plan("a", 3, others=(("b", 2),))
        asked = {"b": theirs}
        if lacking == "taken":
            world.grant("b")
        elif lacking == "silent":
            world.time += TTL - 1
            table.renew("a", [])
            world.time += 2
        elif lacking == "drained":
            world.join("c", cpus=1)  # a host is drained as a whole
            assert table.drain("host", True) == 3
        elif lacking == "unplanned":
            asked = {"c": world.join("c", cpus=2)}
        else:
            asked = {"b": theirs[:1]}
        before = [(row.id, row.holder, row.fence) for row in table.slots()]
        assert table.acquire("a", number, table.free_slots("a"), asked) is None
        assert [(row.id, row.holder, row.fence) for row in table.slots()] == before
        assert table.memberships("a") == table.memberships("b") == []
        assert table.acquire("a", number, [*table.free_slots("a"), *theirs]) is None
        assert_legal(table.events())

    def test_one_that_crosses_is_not_granted_on_one_worker_alone(
        self, world: AllocationWorld
    ) -> None:
        slots = world.join("a", cpus=2)
        theirs = world.join("b", cpus=1)
        number = world.plan("a", 2, others=(("b", 1),))
        assert world.table().acquire("a", number, slots) is None
        assert world.table().acquire("a", number, slots[:1], {"b": theirs, "c": []}) is None
        assert world.table().acquire("a", number, slots[:1], {"b": theirs}) is not None

    def test_each_renews_its_own(self, world: AllocationWorld) -> None:
        grant = _cross(world)
        table, everything = world.table(), [*grant.slots, *grant.others[0].slots]
        assert table.renew("a", everything).kept == set(grant.slots)
        assert table.renew("b", everything).kept == set(grant.others[0].slots)

    def test_a_part_stays_until_its_own_worker_gives_it_back(self, world: AllocationWorld) -> None:
        grant = _cross(world)
        table = world.table()
        table.publish_rendezvous("a", grant, MEETING)
        assert table.release("a", grant, "paused", ended="pause")
        holders = [row.holder for row in table.slots()]
        assert holders.count("b") == 2 and holders.count("a") == 0
        [hand] = table.memberships("b")
        assert not hand.active
        assert not table.release_part("a", grant.number, grant.fence)
        assert not table.release_part("b", grant.number, grant.fence + 1)
        assert table.release_part("b", grant.number, grant.fence)
        assert not table.release_part("b", grant.number, grant.fence)
        assert all(row.holder is None for row in table.slots())
        assert table.memberships("b") == [] and not table.orders("b").in_gangs
        assert_legal(table.events())

    def test_the_trial_goes_on_before_an_old_part_is_given_back(
        self, world: AllocationWorld
    ) -> None:
        grant = _cross(world)
        table = world.table()
        table.release("a", grant, "paused", ended="died")
        world.plan("a", 1, number=grant.number)
        again = table.acquire("a", grant.number, table.free_slots("a"))
        assert again is not None and again.fence == grant.fence + 1 and again.others == ()
        [hand] = table.memberships("b")
        assert (hand.fence, hand.active) == (grant.fence, False)
        assert table.release_part("b", grant.number, grant.fence)
        assert table.trials()[0].owner == "a" and table.segments()[-1].ended is None

    def test_where_the_ranks_meet_is_said_by_the_owner_once(self, world: AllocationWorld) -> None:
        grant = _cross(world)
        table = world.table()
        with pytest.raises(LeaseLost):
            table.publish_rendezvous("b", grant, MEETING)
        table.publish_rendezvous("a", grant, MEETING)
        table.publish_rendezvous("a", grant, Rendezvous("10.0.0.9", 1, 2, "another"))
        [hand] = table.memberships("b")
        assert hand.rendezvous == MEETING
        table.release("a", grant, "paused", ended="pause")
        with pytest.raises(LeaseLost):
            table.publish_rendezvous("a", grant, MEETING)

    def test_what_an_unheard_grant_took_is_free_again(self, world: AllocationWorld) -> None:
        grant = _cross(world)
        table = world.table()
        assert table.cancel_grant("a", grant.number, grant.fence)
        assert all(row.holder is None for row in table.slots())
        assert table.memberships("b") == []
        with pytest.raises(LeaseLost):
            table.publish_rendezvous("a", grant, MEETING)
        assert_legal(table.events())

    def test_a_part_whose_ranks_may_run_is_never_taken_back(self, world: AllocationWorld) -> None:
        grant = _cross(world)
        table = world.table()
        table.publish_rendezvous("a", grant, MEETING)
        assert table.cancel_grant("a", grant.number, grant.fence)
        assert [row.holder for row in table.slots()].count("b") == 2
        assert table.release_part("b", grant.number, grant.fence)

    def test_a_dead_workers_part_is_gone_and_the_owner_sees_it(
        self, world: AllocationWorld
    ) -> None:
        grant = _cross(world)
        table = world.table()
        world.time += TTL
        table.renew("a", grant.slots)
        world.time += GRACE + 1
        assert table.reap() == 2
        assert table.memberships("a") == table.memberships("b") == []
        assert table.trials()[0].owner == "a"
        table.add_checkpoint("a", grant, checkpoint(grant, 1, 0.5))
        assert not table.release_part("b", grant.number, grant.fence)
        assert table.release("a", grant, "paused", ended="died")
        assert_legal(table.events())

    def test_a_dead_owners_trial_is_lost_and_the_others_see_it(
        self, world: AllocationWorld
    ) -> None:
        grant = _cross(world)
        table, theirs = world.table(), grant.others[0].slots
        world.time += TTL
        assert table.renew("b", theirs).kept == set(theirs)
        world.time += GRACE + 1
        assert table.reap() == 1
        [hand] = table.memberships("b")
        assert not hand.active
        assert (table.trials()[0].owner, table.trials()[0].state) == (None, "paused")
        assert table.release_part("b", grant.number, grant.fence)
        assert_legal(table.events())


def _cross(world: AllocationWorld) -> Grant:
    """A gang of three: one slot of worker a, which leads, and two of worker b."""
    ours, theirs = world.join("a", cpus=1), world.join("b", cpus=2)
    number = world.plan("a", 3, others=(("b", 2),))
    grant = world.table().acquire("a", number, ours, {"b": theirs})
    assert grant is not None
    return grant


class MoneySuite:
    """The budget of a study in a store."""

    def test_without_money_the_deadline_is_the_end(self, world: AllocationWorld) -> None:
        world.join("a")
        orders = world.table().orders("a")
        assert (orders.pool_slots, orders.funds_end, orders.end) == (None, None, DEADLINE)

    def test_each_change_of_the_pool_is_audited_once(self, world: AllocationWorld) -> None:
        world.join("a")
        table = world.table()
        term = table.elect_planner("a")
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
        term = table.elect_planner("planner")
        assert term is not None
        table.resize_pool("planner", term, 1, world.time + 10)
        world.time += 10
        assert table.acquire("a", number, ids[:1]) is None
        table.resize_pool("planner", term, 1, world.time + 10)
        assert table.acquire("a", number, ids[:1]) is not None

    def test_I6_an_old_term_buys_nothing(self, world: AllocationWorld) -> None:
        world.join("a")
        table = world.table()
        term = table.elect_planner("a")
        assert term is not None
        with pytest.raises(LeaseLost):
            table.resize_pool("a", term + 1, 8, world.time + 10)
        assert table.orders("a").pool_slots is None

    def test_a_price_brings_the_end_forward_for_whoever_saw_what_stands(
        self, world: AllocationWorld
    ) -> None:
        world.join("a")
        table = world.table()
        term = table.elect_planner("a")
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
        term = table.elect_planner("a")
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
        table.register("b", "host", 1, [], 1, machine_info=MachineInfo(host_type="big"))
        types = {row.worker: row.detail.get("type") for row in table.events(kinds=["register"])}
        assert types == {"a": None, "b": "big"}

    def test_no_more_is_granted_than_is_paid_for(self, world: AllocationWorld) -> None:
        ids = world.join("a", cpus=3)
        first, second = world.plan("a"), world.plan("a")
        table = world.table()
        term = table.elect_planner("planner")
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
        table.reap_ended(["a"])
        assert table.orders("").pool_slots == 2
        world.time += 10
        table.reap_ended(["b"])
        assert (table.orders("").pool_slots, table.orders("").funds_end) == (0, None)
        [rest] = table.events(kinds=["rest"])
        assert rest.detail["since"] == world.time

    def test_a_study_that_is_settled_or_free_does_not_rest(self, world: AllocationWorld) -> None:
        world.join("free", study="other")
        world.table(study="other").leave("free")
        table = self._paying(world, "a")
        term = table.elect_planner("a")
        assert term is not None
        table.settle("a", term)
        table.leave("a")
        assert table.orders("").pool_slots == 2
        for store in (table, world.table(study="other")):
            assert store.events(kinds=["rest"]) == []

    @staticmethod
    def _paying(world: AllocationWorld, *workers: str) -> AllocationTable:
        """A study that pays for two slots, with these workers."""
        for name in workers:
            world.join(name)
        table = world.table()
        term = table.elect_planner(workers[0])
        assert term is not None
        table.resize_pool(workers[0], term, 2, world.time + 100)
        return table
