"""Several studies on the slots of one pool."""

from __future__ import annotations

import pytest

from optuna_deadline.allocation.records import Claim
from optuna_deadline.errors import LeaseLost
from optuna_deadline.testing.allocation.world import GRACE, TTL, AllocationWorld, assert_legal


class SharingSuite:
    """A slot belongs to its host, and whom it is lent to may take it."""

    def test_workers_of_two_studies_offer_the_same_slots(self, world: AllocationWorld) -> None:
        first = world.join("a", cpus=2, study="one")
        assert world.join("b", cpus=3, study="two")[:2] == first
        world.join("c", cpus=1, study="one")
        offers = {slot.device: slot.offered_by for slot in world.table(study="one").slots()}
        assert offers == {
            "cpu:0": ("a", "b"), "cpu:1": ("a", "b"), "cpu:2": ("b", "c"),
        }  # fmt: skip

    def test_a_studys_roster_is_its_own_workers_and_their_slots(
        self, world: AllocationWorld
    ) -> None:
        world.join("b", cpus=3, study="two")
        world.join("a", cpus=2, study="one")
        world.join("c", cpus=2, study="one")
        one, two = world.table(study="one").roster(), world.table(study="two").roster()
        assert ([row.id for row in one.workers], one.offered) == (["a", "c"], {"a": 2, "c": 2})
        assert ([row.id for row in two.workers], two.offered) == (["b"], {"b": 3})
        assert (one.lent, two.lent) == ({"c": 1}, {"b": 3}), "a newcomer has what nobody offers"
        assert (one.lease, two.lease) == (None, None)

    def test_a_roster_tells_when_the_first_lease_in_reach_ends(
        self, world: AllocationWorld
    ) -> None:
        """Also on the slot of a worker that is dead, for somebody has to reap it."""
        table = world.table()
        world.join("a", cpus=2)
        world.grant("a")
        ends = world.time + TTL
        world.time += 1.0
        assert table.roster().lease == ends
        world.time += TTL
        assert (table.roster().workers, table.roster().lease) == ([], ends)

    def test_a_drained_worker_is_on_the_roster_without_its_slots(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=2)
        world.table().drain("host", True)
        roster = world.table().roster()
        assert [row.id for row in roster.workers] == ["a"]
        assert (roster.offered, roster.lent) == ({}, {})

    def test_a_gpu_is_named_by_two_studies_of_a_pool(self, world: AllocationWorld) -> None:
        [first] = world.table(study="one").register("a", "host", 7, ["gpu:0"], 0)
        [second] = world.table(study="two").register("b", "host", 8, ["gpu:0"], 0)
        assert (first.id, first.offered_by) == (second.id, ("a",))
        assert second.offered_by == ("a", "b")
        assert world.table(study="one").renew("a", []).offers == 1
        assert world.table(study="two").renew("b", []).offers == 1

    def test_a_newcomer_is_lent_what_no_other_live_worker_offers(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=1, study="one")
        world.join("b", cpus=2, study="two")
        one, two = world.table(study="one"), world.table(study="two")
        lent = [slot.lent_to for slot in one.slots()]
        assert lent == [one.study_id, two.study_id]
        world.time += TTL + 1
        world.join("c", cpus=2, study="two")
        assert [slot.lent_to for slot in one.slots()] == [two.study_id] * 2

    def test_only_whom_a_slot_is_lent_to_takes_it(self, world: AllocationWorld) -> None:
        slots = world.join("a", cpus=1, study="one")
        world.join("b", cpus=1, study="two")
        one, two = world.table(study="one"), world.table(study="two")
        number = world.plan("b", study="two")
        assert (one.free_slots("a"), two.free_slots("b")) == (slots, [])
        assert two.acquire("b", number, slots) is None
        _lend(world, slots[0], two.study_id)
        assert (one.free_slots("a"), two.free_slots("b")) == ([], slots)
        assert one.acquire("a", world.plan("a", study="one"), slots) is None
        assert two.acquire("b", number, slots) is not None

    def test_a_slot_changes_hands_once_its_holder_has_released_it(
        self, world: AllocationWorld
    ) -> None:
        slots = world.join("a", cpus=1, study="one")
        world.join("b", cpus=1, study="two")
        one, two = world.table(study="one"), world.table(study="two")
        grant = world.grant("a", study="one")
        number = world.plan("b", study="two")
        _lend(world, slots[0], two.study_id)
        assert one.renew("a", grant.slots).kept == set(grant.slots)
        assert two.free_slots("b") == [] and two.acquire("b", number, slots) is None
        one.release("a", grant, "paused", ended="pause")
        assert one.acquire("a", grant.number, slots) is None
        new = two.acquire("b", number, slots)
        assert new is not None and new.slots[0][1] == grant.slots[0][1] + 2
        assert_legal([*one.events(), *two.events()])

    def test_the_pools_audit_has_every_study(self, world: AllocationWorld) -> None:
        slots = world.join("a", cpus=1, study="one")
        world.join("b", cpus=1, study="two")
        one, two = world.table(study="one"), world.table(study="two")
        _lend(world, slots[0], two.study_id)
        said = one.pool_events(kinds=("register", "lend"))
        assert said == two.pool_events(kinds=("register", "lend"))
        assert [(event.kind, event.study_id) for event in said] == [
            ("register", one.study_id), ("register", two.study_id), ("lend", two.study_id),
        ]  # fmt: skip
        assert one.pool_events(said[-1].id, ("lend",)) == []
        assert all(event.study_id == one.study_id for event in one.events())

    def test_a_slot_outlives_the_worker_that_brought_it(self, world: AllocationWorld) -> None:
        """Another study's worker of the host still offers it; what it held is reaped first."""
        slots = world.join("a", cpus=1, study="one")
        world.grant("a", study="one")
        world.time += TTL
        world.join("b", cpus=1, study="two")
        two = world.table(study="two")
        number = world.plan("b", study="two")
        world.time += 1
        _lend(world, slots[0], two.study_id)
        assert [slot.offered_by for slot in two.slots()] == [("b",)]
        assert two.acquire("b", number, slots) is None
        world.time += GRACE
        assert two.reap() == 1
        assert two.acquire("b", number, slots) is not None

    def test_each_study_has_its_planner_and_the_pool_its_leader(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", study="one")
        world.join("b", study="two")
        one, two = world.table(study="one"), world.table(study="two")
        assert (one.elect("a"), two.elect("b")) == (1, 1)
        assert (one.lead("a"), two.lead("b")) == (1, None)
        one.leave("a")
        assert two.lead("b") == 2
        world.time += TTL + 1
        assert (one.elect("c"), two.lead("b")) == (2, 3)

    def test_an_old_term_neither_lends_nor_claims(self, world: AllocationWorld) -> None:
        [slot] = world.join("a", cpus=1, study="one")
        world.join("b", cpus=1, study="two")
        one, two = world.table(study="one"), world.table(study="two")
        led, planned = one.lead("a"), one.elect("a")
        assert led is not None and planned is not None
        world.time += TTL + 1
        assert two.lead("b") == led + 1 and one.elect("c") == planned + 1
        with pytest.raises(LeaseLost):
            one.lend("a", led, {slot: two.study_id}, {}, {})
        with pytest.raises(LeaseLost):
            one.claim("a", planned, Claim(1, 1, 0.0, None))
        assert one.slots()[0].lent_to == one.study_id
        assert [tenant.claim for tenant in one.tenants()] == [None, None]

    def test_the_pool_knows_its_studies_and_keeps_their_accounts(
        self, world: AllocationWorld
    ) -> None:
        world.table(study="one").register("a", "host", 1, [], 2, 3.0)
        world.join("b", cpus=2, study="two")
        one, two = world.table(study="one"), world.table(study="two")
        term, planned = one.lead("a"), two.elect("b")
        assert term is not None and planned is not None
        said = Claim(live=4, most=2, done=7.5, remaining=None)
        two.claim("b", planned, said)
        world.time += 10
        shares = {one.study_id: 2}
        one.lend("a", term, {}, shares, {one.study_id: 1.5, two.study_id: 0.5})
        first, second = one.tenants()
        assert (first.study_id, first.weight, first.claim) == (one.study_id, 3.0, None)
        assert (second.study_id, second.weight, second.claim) == (two.study_id, 1.0, said)
        assert (first.served, first.entitled) == pytest.approx((20, 15))
        assert (second.served, second.entitled) == pytest.approx((0, 5))
        one.register("a", "host", 1, [], 2, None)
        two.register("b", "host", 1, [], 2, 0.5)
        assert [tenant.weight for tenant in one.tenants()] == [3.0, 0.5]

    def test_a_worker_that_died_in_a_settled_study_offers_nothing_to_the_next(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=1, study="one")
        one = world.table(study="one")
        term = one.elect("a")
        assert term is not None
        one.settle("a", term)
        world.time += TTL + GRACE + 1.0
        assert one.reap() == 0
        assert one.renew("a", []).offers == 1, "while none needs it"
        world.time += TTL + GRACE + 1.0
        assert one.reap() == 0
        world.join("b", cpus=1, study="two")
        assert one.renew("a", []).offers == 0

    def test_a_settled_study_is_no_tenant_any_more(self, world: AllocationWorld) -> None:
        world.join("a", study="one")
        world.join("b", study="two")
        one = world.table(study="one")
        term = one.elect("a")
        assert term is not None
        one.settle("a", term)
        assert [row.study_id for row in one.tenants()] == [world.table(study="two").study_id]


def _lend(world: AllocationWorld, slot: int, study_id: int) -> None:
    table = world.table(study="one")
    term = table.lead("leader")
    assert term is not None
    table.lend("leader", term, {slot: study_id}, {}, {})
