"""Only the reaper compares clocks, and it errs on the late side."""

from __future__ import annotations

from optuna_deadline.testing.worlds import (
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
        world.time += GRACE
        world.table().reap()
        assert world.table().acquire("b", number, slots) is not None
