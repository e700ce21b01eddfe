"""Slots have one holder, a fence that only rises, and leases that only the reaper ends."""

from __future__ import annotations

import pytest

from optuna_deadline.allocation.records import Assignment
from optuna_deadline.errors import LeaseLost
from optuna_deadline.testing.allocation.world import (
    TTL,
    AllocationWorld,
    assert_legal,
    changes_of_slots,
    checkpoint,
)


class LeaseSuite:
    """Acquire, renew, release."""

    def test_a_gang_is_granted_whole_or_not_at_all(self, world: AllocationWorld) -> None:
        slots = world.join("a", cpus=2)
        world.grant("a", 1)
        wide = world.plan("a", slots=2)
        assert world.table().acquire("a", wide, slots) is None
        assert [slot.holder for slot in world.table().slots()].count("a") == 1

    def test_a_grant_names_its_slots_and_fences(self, world: AllocationWorld) -> None:
        slots = world.join("a", cpus=2)
        grant = world.grant("a", 2)
        assert grant.slots == tuple((slot, 1) for slot in slots)
        assert (grant.fence, grant.size, grant.trial_id) == (1, 2, 100)
        assert grant.devices == ("cpu:0", "cpu:1")
        for row in world.table().slots():
            assert (row.holder, row.number, row.fence) == ("a", grant.number, 1)
            assert row.lease == world.time + TTL
        [line] = world.table().trials()
        assert (line.owner, line.state, line.fence) == ("a", "running", 1)

    def test_a_slot_and_a_trial_have_one_holder(self, world: AllocationWorld) -> None:
        slots = world.join("a", cpus=2)
        grant = world.grant("a")
        assert world.table().acquire("a", grant.number, slots[1:]) is None
        other = world.plan("a")
        assert world.table().acquire("a", other, [grant.slots[0][0]]) is None

    def test_a_free_slot_elsewhere_does_not_make_a_held_one_free(
        self, world: AllocationWorld
    ) -> None:
        [mine] = world.join("a", cpus=1)
        world.join("b", cpus=2)
        world.grant("a")
        assert world.table().acquire("a", world.plan("a"), [mine]) is None

    def test_I2_no_more_is_granted_than_there_is(self, world: AllocationWorld) -> None:
        slots = world.join("a", cpus=2)
        table = world.table()
        numbers = [world.plan("a") for _ in range(3)]
        grants = [table.acquire("a", n, [slots[i % 2]]) for i, n in enumerate(numbers)]
        assert sum(grant is not None for grant in grants) == 2
        assert table.acquire("a", world.plan("a", 2), [slots[0], slots[0]]) is None
        assert sum(slot.holder is not None for slot in table.slots()) == len(slots)

    def test_nothing_is_granted_for_no_slots(self, world: AllocationWorld) -> None:
        world.join("a")
        number = world.plan("a", slots=0)
        assert world.table().acquire("a", number, []) is None

    def test_only_the_planned_worker_with_the_planned_size_acquires(
        self, world: AllocationWorld
    ) -> None:
        slots = world.join("a", cpus=2)
        theirs = world.join("b", cpus=1)
        number = world.plan("a", slots=1)
        table = world.table()
        assert table.acquire("b", number, theirs) is None
        assert table.acquire("a", number, slots) is None
        assert table.acquire("a", 99, slots[:1]) is None
        assert table.acquire("a", number, slots[:1]) is not None

    def test_nobody_takes_the_slots_that_another_worker_offers(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=1)
        theirs = world.join("b", cpus=1)
        assert world.table().acquire("a", world.plan("a"), theirs) is None

    @pytest.mark.parametrize("mode", ["pause", "stop"])
    def test_a_trial_that_shall_not_run_is_not_granted(
        self, world: AllocationWorld, mode: str
    ) -> None:
        slots = world.join("a", cpus=1)
        number = world.plan("a")
        term = world.table().elect("planner")
        assert term is not None
        world.table().write_plan("planner", term, [Assignment(number, mode, "a", 1, "no")])
        assert world.table().acquire("a", number, slots) is None

    def test_I8_nothing_is_granted_after_the_deadline(self, world: AllocationWorld) -> None:
        slots = world.join("a", cpus=1)
        number = world.plan("a")
        world.time = world.deadline
        assert world.table().acquire("a", number, slots) is None
        world.time = world.deadline - 0.5
        assert world.table().acquire("a", number, slots) is not None

    def test_I8_nothing_is_granted_once_the_study_is_settled(self, world: AllocationWorld) -> None:
        slots = world.join("a", cpus=1)
        number = world.plan("a")
        term = world.table().elect("planner")
        assert term is not None
        world.table().settle("planner", term)
        assert world.table().acquire("a", number, slots) is None
        assert world.table().orders("a").settled

    def test_renewal_is_guarded_by_the_fence_and_not_by_the_clock(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=1)
        grant = world.grant("a")
        world.time += 1000  # long expired, but nobody has reaped it
        assert world.table().renew("a", grant.slots).kept == set(grant.slots)
        world.lose(grant)
        assert world.table().renew("a", grant.slots).kept == frozenset()

    def test_renewal_keeps_what_is_still_ours_and_nothing_else(
        self, world: AllocationWorld
    ) -> None:
        slots = world.join("a", cpus=2)
        old = world.grant("a")
        world.lose(old)
        new = world.table().acquire("a", old.number, slots[:1])
        assert new is not None and new.slots[0][0] == old.slots[0][0]
        assert world.table().renew("a", [*old.slots, *new.slots]).kept == set(new.slots)
        assert world.table().renew("b", new.slots).kept == frozenset()

    def test_I5_what_a_worker_trusts_ends_before_its_lease(self, world: AllocationWorld) -> None:
        world.join("a", cpus=1)
        sent = world.time
        grant = world.grant("a")
        lease = world.table().slots()[0].lease
        assert lease is not None and lease >= sent + world.table().ttl
        world.time += 20
        sent = world.time
        renewal = world.table().renew("a", grant.slots)
        lease = world.table().slots()[0].lease
        assert renewal.now >= sent and lease == renewal.now + world.table().ttl

    def test_I4_an_old_fence_writes_nothing(self, world: AllocationWorld) -> None:
        slots = world.join("a", cpus=1)
        old = world.grant("a")
        world.lose(old)
        table = world.table()
        for _ in range(2):  # while nobody owns the trial, and once the same worker does again
            with pytest.raises(LeaseLost):
                table.add_checkpoint("a", old, checkpoint(old, 1, 0.5))
            with pytest.raises(LeaseLost):
                table.add_report("a", old, 1, 0.5, 1.0)
            with pytest.raises(LeaseLost):
                table.set_progress(
                    "a", old, startup=1, position_from=0, position_to=1, trained=9, horizon=9
                )
            assert not table.release("a", old, "complete", ended="complete", value=1.0)
            assert not table.disown("a", old.number, old.fence)
            new = table.acquire("a", old.number, slots)
            assert new is None or new.fence == old.fence + 1
        assert table.reports() == [] and table.checkpoints() == []
        assert (table.slots()[0].holder, table.trials()[0].state) == ("a", "running")
        assert [row.outcome for row in table.segments()] == ["lost", None]

    def test_I4_another_worker_with_the_same_fence_writes_nothing(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=1)
        world.join("b", cpus=1)
        grant = world.grant("a")
        with pytest.raises(LeaseLost):
            world.table().add_report("b", grant, 1, 0.5, 1.0)
        assert not world.table().release("b", grant, "paused", ended="pause")
        assert not world.table().disown("b", grant.number, grant.fence)
        assert world.table().slots()[0].holder == "a"

    def test_I3_fences_rise_by_one_and_grants_alternate_with_ends(
        self, world: AllocationWorld
    ) -> None:
        slots = world.join("a", cpus=1)
        number = world.plan("a")
        table = world.table()
        for _ in range(3):
            grant = table.acquire("a", number, slots)
            assert grant is not None
            table.release("a", grant, "paused", ended="pause")
        grant = table.acquire("a", number, slots)
        assert grant is not None
        world.lose(grant)
        assert_legal(table.events())
        [changes] = changes_of_slots(table.events()).values()
        assert [kind for kind, _ in changes] == ["acquire", "release"] * 3 + ["acquire", "reap"]

    def test_release_frees_the_slots_and_says_how_it_ended(self, world: AllocationWorld) -> None:
        world.join("a", cpus=2)
        grant = world.grant("a", 2)
        table = world.table()
        assert table.release("a", grant, "complete", ended="complete", value=0.25, stop=0.1)
        assert all(slot.holder is None and slot.lease is None for slot in table.slots())
        [line] = table.trials()
        assert (line.state, line.value, line.told) == ("complete", 0.25, False)
        [segment] = table.segments()
        assert (segment.outcome, segment.slots, segment.stop) == ("complete", 2, 0.1)
        assert segment.ended == world.time and table.segments(world.time + 1) == []

    def test_a_parked_trial_is_paused_and_its_worker_named_unless_it_is_wanted_elsewhere(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=1)
        world.join("b", cpus=1)
        table = world.table()
        grant = world.grant("a")
        term = table.elect("planner")
        assert term is not None
        table.write_plan("planner", term, [Assignment(grant.number, "pause", None, 0, "rest")])
        assert table.release("a", grant, "paused", ended="park", stays=True)
        [line] = table.orders("a").desired
        assert (line.state, line.mode, line.worker, line.owner) == ("paused", "pause", "a", None)
        assert table.free_slots("a") and not table.orders("b").desired
        assert table.acquire("a", grant.number, table.free_slots("a")) is None
        table.write_plan("planner", term, [Assignment(grant.number, "run", "b", 1, "go on")])
        assert not table.orders("a").desired
        again = table.acquire("b", grant.number, table.free_slots("b"))
        assert again is not None and again.fence == grant.fence + 1
        table.write_plan("planner", term, [Assignment(grant.number, "run", "a", 1, "back")])
        assert table.release("b", again, "paused", ended="park", stays=True)
        assert [line.worker for line in table.trials()] == ["a"]

    def test_orders_name_what_a_worker_has_and_what_it_shall_have(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=2)
        theirs = world.join("b", cpus=1)
        running = world.grant("a")
        wanted = world.plan("a")
        moved = world.grant("a").number
        world.plan("b", number=moved)
        table = world.table()
        assert {line.number for line in table.orders("a").desired} == {
            running.number,
            wanted,
            moved,
        }
        assert [line.number for line in table.orders("b").desired] == [moved]
        assert table.acquire("b", moved, theirs) is None  # not before the other has let go
        orders = table.orders("a")
        assert (orders.now, orders.deadline) == (world.time, world.deadline)
        assert not orders.settled and orders.epoch == 4
        table.release("a", running, "failed", ended="error", failures=1)
        assert running.number not in {line.number for line in table.orders("a").desired}
