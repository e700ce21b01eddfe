"""Only the reaper compares clocks, and it errs on the late side."""

from __future__ import annotations

from optuna_deadline.allocation.records import About, Assignment
from optuna_deadline.testing.allocation.world import (
    GRACE,
    TTL,
    AllocationWorld,
    assert_legal,
    changes_of_slots,
)


class ReapingSuite:
    """What dead workers held comes back, once and late enough."""

    def test_reaping_waits_for_lease_and_grace(self, world: AllocationWorld) -> None:
        world.join("a", cpus=1)
        grant = world.grant("a")
        world.time += TTL + GRACE - 0.1
        assert world.table().reap() == 0
        world.time += 0.2
        assert world.table().reap() == 1
        [line] = world.table().trials()
        assert (line.owner, line.state, line.number) == (None, "paused", grant.number)

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
        [line] = lab.trials()
        assert (line.owner, line.state) == (None, "paused")
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
        [line] = one.trials()
        assert (line.owner, line.state, line.fence) == (None, "paused", grant.fence)
        assert [row.outcome for row in one.segments()] == ["lost"]
        # The audit of each study is whole by itself.
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
        assert table.lead("a") == 1
        world.time += 1
        assert table.bury(["a"]) == 1
        mine, theirs = table.trials()
        assert (mine.owner, mine.state, mine.number) == (None, "paused", grant.number)
        assert (theirs.owner, theirs.fence) == ("b", other.fence)
        assert [worker.id for worker in table.workers()] == ["b"]
        assert [row.outcome for row in table.segments()] == ["lost", None]
        assert table.lead("b") == 2  # nor is its term waited for
        assert table.bury(["a"]) == 0 and table.bury([]) == 0
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
        assert table.elect("a") == 1 and table.elect("b") is None
        table.bury(["a"])
        assert table.elect("b") == 2

    def test_who_was_taken_for_ended_and_lives_has_lost_its_slots_and_comes_back(
        self, world: AllocationWorld
    ) -> None:
        world.join("a")
        grant = world.grant("a")
        table = world.table()
        table.bury(["a"])
        assert table.renew("a", grant.slots).kept == frozenset()
        assert not table.release("a", grant, "paused", ended="pause")
        assert [worker.id for worker in table.workers()] == ["a"]

    def test_the_dead_of_every_pool_on_a_host_are_found_and_buried(
        self, world: AllocationWorld
    ) -> None:
        about = About(boot="boot")
        ours, theirs = world.table("ours"), world.table("theirs", study="other")
        theirs.register("a", "host", 7, ["gpu:0"], 0, None, about)
        term = theirs.elect("a")
        assert term is not None
        theirs.open_trial("a", term, 0, 100)
        theirs.write_plan("a", term, [Assignment(0, "run", "a", 1, "test")])
        assert theirs.acquire("a", 0, theirs.free_slots("a")) is not None
        theirs.leave("a")  # and dies with its slots in its hands
        ours.register("b", "host", 8, [], 1, None, about)
        known = ours.on_host("host")
        assert [(row.id, row.pid, row.boot, row.state) for row in known] == [
            ("a", 7, "boot", "left"),
            ("b", 8, "boot", "live"),
        ]
        assert ours.bury(["a"]) == 1
        assert [row.id for row in ours.on_host("host")] == ["b"]
        assert [slot.device for slot in ours.register("b", "host", 8, ["gpu:0"], 0)] == ["gpu:0"]
        # The audit of the pool that it died in says so.
        kinds = [event.kind for event in theirs.events()]
        assert "reap" in kinds and "lost" in kinds and theirs.trials()[0].state == "paused"
