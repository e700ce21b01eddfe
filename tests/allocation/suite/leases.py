"""Tests of leases: a slot has one holder, its fence only rises, only the reaper ends leases."""

from __future__ import annotations

import pytest
from allocation.suite.world import (
    GRACE,
    TTL,
    AllocationWorld,
    assert_legal,
    changes_of_slots,
    checkpoint,
)

from optuna_deadline.allocation.records import Assignment, MachineInfo, NewReport
from optuna_deadline.errors import LeaseLost


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
        [planned] = world.table().trials()
        assert (planned.owner, planned.state, planned.fence) == ("a", "running", 1)

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
        term = world.table().elect_planner("planner")
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
        term = world.table().elect_planner("planner")
        assert term is not None
        world.table().settle("planner", term)
        assert world.table().acquire("a", number, slots) is None
        assert world.table().orders("a").settled

    def test_renewal_is_guarded_by_the_fence_and_not_by_the_clock(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=1)
        grant = world.grant("a")
        world.time += 1000  # long expired, but not reaped
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
        for _ in range(2):  # while the trial has no owner, and once the same worker owns it again
            with pytest.raises(LeaseLost):
                table.add_checkpoint("a", old, checkpoint(old, 1, 0.5))
            with pytest.raises(LeaseLost):
                table.add_reports("a", old, [NewReport(1, 0.5, 1.0)])
            with pytest.raises(LeaseLost):
                table.set_progress(
                    "a", old, startup=1, position_from=0, position_to=1, trained=9, horizon=9
                )
            assert not table.release("a", old, "complete", ended="complete", value=1.0)
            assert not table.cancel_grant("a", old.number, old.fence)
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
            world.table().add_reports("b", grant, [NewReport(1, 0.5, 1.0)])
        assert not world.table().release("b", grant, "paused", ended="pause")
        assert not world.table().cancel_grant("b", grant.number, grant.fence)
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
        [planned] = table.trials()
        assert (planned.state, planned.value, planned.end_reported) == ("complete", 0.25, False)
        [segment] = table.segments()
        assert (segment.outcome, segment.slots, segment.stop) == ("complete", 2, 0.1)
        assert segment.ended == world.time and table.segments(world.time + 1) == []

    def test_a_warm_trial_is_paused_and_its_worker_named_unless_it_is_wanted_elsewhere(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=1)
        world.join("b", cpus=1)
        table = world.table()
        grant = world.grant("a")
        term = table.elect_planner("planner")
        assert term is not None
        table.write_plan("planner", term, [Assignment(grant.number, "pause", None, 0, "rest")])
        assert table.release("a", grant, "paused", ended="warm", stays=True)
        [planned] = table.orders("a").trials
        assert (planned.state, planned.mode, planned.worker, planned.owner) == (
            "paused",
            "pause",
            "a",
            None,
        )
        assert table.free_slots("a") and not table.orders("b").trials
        assert table.acquire("a", grant.number, table.free_slots("a")) is None
        table.write_plan("planner", term, [Assignment(grant.number, "run", "b", 1, "go on")])
        assert not table.orders("a").trials
        again = table.acquire("b", grant.number, table.free_slots("b"))
        assert again is not None and again.fence == grant.fence + 1
        table.write_plan("planner", term, [Assignment(grant.number, "run", "a", 1, "back")])
        assert table.release("b", again, "paused", ended="warm", stays=True)
        assert [planned.worker for planned in table.trials()] == ["a"]

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
        assert {planned.number for planned in table.orders("a").trials} == {
            running.number,
            wanted,
            moved,
        }
        assert [planned.number for planned in table.orders("b").trials] == [moved]
        assert table.acquire("b", moved, theirs) is None  # not before the other has released it
        orders = table.orders("a")
        assert (orders.now, orders.deadline) == (world.time, world.deadline)
        assert not orders.settled and orders.epoch == 4
        table.release("a", running, "failed", ended="error", failures=1)
        assert running.number not in {planned.number for planned in table.orders("a").trials}


class ReapingSuite:
    """The slots of dead workers become free once, and not too early."""

    def test_reaping_waits_for_lease_and_grace(self, world: AllocationWorld) -> None:
        world.join("a", cpus=1)
        grant = world.grant("a")
        world.time += TTL + GRACE - 0.1
        assert world.table().reap() == 0
        world.time += 0.2
        assert world.table().reap() == 1
        [planned] = world.table().trials()
        assert (planned.owner, planned.state, planned.number) == (None, "paused", grant.number)

    def test_the_grace_is_the_pools_and_not_the_reapers(self, world: AllocationWorld) -> None:
        world.join("a", cpus=1)
        world.grant("a")
        hasty = world.open(ttl=1, grace=0)
        world.time += TTL + 1
        assert hasty.reap() == 0
        assert world.table().slots()[0].holder == "a"

    def test_a_renewed_lease_is_not_reaped(self, world: AllocationWorld) -> None:
        world.join("a", cpus=1)
        grant = world.grant("a")
        for _ in range(5):
            world.time += TTL - 1
            world.table().renew("a", grant.slots)
            assert world.table().reap() == 0

    def test_reaping_frees_a_trial_whose_owner_is_gone(self, world: AllocationWorld) -> None:
        world.join("a", cpus=2)
        grant = world.grant("a", 2)
        world.lose(grant)
        table = world.table()
        assert all(slot.holder is None for slot in table.slots())
        [segment] = table.segments()
        assert (segment.outcome, segment.ended) == ("lost", world.time)
        assert "lost" in [event.kind for event in table.events()]
        assert table.reap() == 0
        slots = world.join("b", cpus=2)
        world.plan("b", 2, number=grant.number)
        again = table.acquire("b", grant.number, slots)
        assert again is not None and again.fence == grant.fence + 1

    def test_a_worker_whose_lease_ran_out_is_no_longer_counted(
        self, world: AllocationWorld
    ) -> None:
        world.join("a")
        world.join("b")
        world.time += TTL / 2
        world.table().renew("b", [])
        assert [worker.id for worker in world.table().workers()] == ["a", "b"]
        world.time += TTL / 2 + 1
        assert [worker.id for worker in world.table().workers()] == ["b"]
        world.time += GRACE
        world.table().reap()
        world.table().renew("a", [])  # frozen, not dead
        assert {worker.id for worker in world.table().workers()} >= {"a"}

    def test_what_a_studys_dead_workers_held_in_another_pool_is_reaped(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=1)
        world.grant("a")
        lease = world.time + TTL
        world.time += TTL + 1
        lab = world.table("lab")
        lab.register("b", "host", 2, ["gpu:0"], 0)
        assert (lab.reap(), lab.roster().lease) == (0, lease)
        assert [worker.id for worker in lab.roster().workers] == ["b"]
        world.time += GRACE
        lab.renew("b", [])
        assert (lab.reap(), lab.roster().lease) == (1, None)
        [planned] = lab.trials()
        assert (planned.owner, planned.state) == (None, "paused")
        assert world.table().slots()[0].holder is None
        assert_legal(lab.events())

    def test_a_study_without_workers_is_reaped_by_the_pools_other_study(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=1, study="one")
        grant = world.grant("a", study="one")
        world.join("b", cpus=1, study="two")
        world.time += TTL + GRACE + 1
        assert world.table(study="two").reap() == 1
        one, two = world.table(study="one"), world.table(study="two")
        [planned] = one.trials()
        assert (planned.owner, planned.state, planned.fence) == (None, "paused", grant.fence)
        assert [row.outcome for row in one.segments()] == ["lost"]
        # The audit of each study is complete by itself.
        assert changes_of_slots(two.events()) == {}
        assert_legal(one.events())
        [changes] = changes_of_slots(one.events()).values()
        assert [kind for kind, _ in changes] == ["acquire", "reap"]

    def test_a_slot_taken_over_keeps_its_holder_until_it_is_reaped(
        self, world: AllocationWorld
    ) -> None:
        slots = world.join("a", cpus=1)
        world.grant("a")
        world.time += TTL + 1
        assert world.join("b", cpus=1) == slots
        number = world.plan("b")
        assert world.table().acquire("b", number, slots) is None
        assert world.table().roster().offered == {"b": 1} and world.table().roster().lent == {}
        world.time += GRACE
        world.table().reap()
        assert world.table().roster().lent == {"b": 1}
        assert world.table().acquire("b", number, slots) is not None

    def test_what_a_worker_held_that_was_seen_to_end_is_free_at_once(
        self, world: AllocationWorld
    ) -> None:
        slots = world.join("a", cpus=2)
        world.join("b", cpus=1)
        grant, other = world.grant("a"), world.grant("b")
        table = world.table()
        assert table.elect_leader("a") == 1
        world.time += 1
        assert table.reap_ended(["a"]) == 1
        mine, theirs = table.trials()
        assert (mine.owner, mine.state, mine.number) == (None, "paused", grant.number)
        assert (theirs.owner, theirs.fence) == ("b", other.fence)
        assert [worker.id for worker in table.workers()] == ["b"]
        assert [row.outcome for row in table.segments()] == ["lost", None]
        assert table.elect_leader("b") == 2  # without a wait for its term
        assert table.reap_ended(["a"]) == 0 and table.reap_ended([]) == 0
        world.join("c", cpus=2)
        world.plan("c", number=grant.number)
        again = table.acquire("c", grant.number, slots[:1])
        assert again is not None and again.fence == grant.fence + 1
        assert_legal(table.events())

    def test_who_planned_and_was_seen_to_end_is_followed_at_once(
        self, world: AllocationWorld
    ) -> None:
        world.join("a")
        world.join("b")
        table = world.table()
        assert table.elect_planner("a") == 1 and table.elect_planner("b") is None
        table.reap_ended(["a"])
        assert table.elect_planner("b") == 2

    def test_who_was_taken_for_ended_and_lives_has_lost_its_slots_and_comes_back(
        self, world: AllocationWorld
    ) -> None:
        world.join("a")
        grant = world.grant("a")
        table = world.table()
        table.reap_ended(["a"])
        assert table.renew("a", grant.slots).kept == frozenset()
        assert not table.release("a", grant, "paused", ended="pause")
        assert [worker.id for worker in table.workers()] == ["a"]

    def test_the_dead_of_every_pool_on_a_host_are_found_and_buried(
        self, world: AllocationWorld
    ) -> None:
        about = MachineInfo(boot="boot")
        ours, theirs = world.table("ours"), world.table("theirs", study="other")
        theirs.register("a", "host", 7, ["gpu:0"], 0, None, about)
        term = theirs.elect_planner("a")
        assert term is not None
        theirs.open_trial("a", term, 0, 100)
        theirs.write_plan("a", term, [Assignment(0, "run", "a", 1, "test")])
        assert theirs.acquire("a", 0, theirs.free_slots("a")) is not None
        theirs.leave("a")  # and dies while it holds slots
        ours.register("b", "host", 8, [], 1, None, about)
        known = ours.on_host("host")
        assert [(row.id, row.pid, row.boot, row.state) for row in known] == [
            ("a", 7, "boot", "left"),
            ("b", 8, "boot", "live"),
        ]
        assert ours.reap_ended(["a"]) == 1
        assert [row.id for row in ours.on_host("host")] == ["b"]
        assert [slot.device for slot in ours.register("b", "host", 8, ["gpu:0"], 0)] == ["gpu:0"]
        # The audit of the pool in which it died shows it.
        kinds = [event.kind for event in theirs.events()]
        assert "reap" in kinds and "lost" in kinds and theirs.trials()[0].state == "paused"
