"""Who may bring which slots."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from optuna_deadline.errors import DeadlineError, LeaseLost, StudyGone
from optuna_deadline.testing.allocation.world import GRACE, TTL, AllocationWorld


class MembershipSuite:
    """Workers come and go; of one study, one live worker offers a slot."""

    def test_two_workers_of_a_host_number_their_cpu_shares_apart(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=2)
        world.join("b", cpus=2)
        devices = [slot.device for slot in world.table().slots()]
        assert devices == ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]

    def test_workers_that_start_at_once_get_different_slots(self, world: AllocationWorld) -> None:
        table = world.table()
        with ThreadPoolExecutor(8) as threads:
            futures = [threads.submit(table.register, f"w{n}", "host", n, [], 2) for n in range(8)]
            offered = [slot.device for future in futures for slot in future.result()]
        assert sorted(offered) == sorted(f"cpu:{n}" for n in range(16))

    def test_a_dead_workers_slots_are_taken_over_by_the_next(self, world: AllocationWorld) -> None:
        first = world.join("a", cpus=2)
        world.time += TTL + 1
        assert world.join("b", cpus=2) == first

    def test_a_silent_workers_renewal_says_that_its_slots_are_gone(
        self, world: AllocationWorld
    ) -> None:
        """It offers again, and keeps what nobody took."""
        first = world.join("a", cpus=2)
        assert world.table().renew("a", []).offers == 2
        world.time += 31
        world.join("b", cpus=1)
        assert world.table().renew("a", []).offers == 1
        again = world.join("a", cpus=2)
        assert len(again) == 2 and first[1] in again
        assert world.table().renew("b", []).offers == 1
        assert {worker.id for worker in world.table().workers()} == {"a", "b"}

    def test_who_has_left_leaves_its_slots_to_the_next(self, world: AllocationWorld) -> None:
        first = world.join("a", cpus=1)
        world.table().leave("a")
        assert world.table().workers() == []
        world.time += 0.1
        assert world.join("b", cpus=1) == first

    def test_a_worker_that_has_left_offers_nothing_any_more(self, world: AllocationWorld) -> None:
        """But what it holds, until that was reaped: its study's roster tells when."""
        table = world.table()
        world.join("a", cpus=3)
        world.grant("a")
        ends = world.time + TTL
        table.leave("a")
        assert (table.roster().lease, table.renew("a", []).offers) == (ends, 1)
        table.leave("a")
        world.time = ends + GRACE + 1.0
        assert table.reap() == 1
        assert table.renew("a", []).offers == 0

    def test_a_gpu_held_in_this_pool_is_refused(self, world: AllocationWorld) -> None:
        world.table().register("a", "host", 7, ["gpu:0"], 0)
        with pytest.raises(DeadlineError, match=r"gpu:0 on host is held by this pool .*process 7"):
            world.table().register("b", "host", 8, ["gpu:0"], 0)
        assert [worker.id for worker in world.table().workers()] == ["a"]

    def test_a_gpu_held_by_another_pool_is_refused(self, world: AllocationWorld) -> None:
        world.table("ours").register("a", "host", 7, ["gpu:0"], 0)
        with pytest.raises(DeadlineError, match=r"gpu:0 on host is held by pool 'ours' .*ess 7"):
            world.table("theirs", "other").register("b", "host", 8, ["gpu:0"], 0)

    def test_a_dead_pools_gpu_moves_to_the_pool_that_names_it(
        self, world: AllocationWorld
    ) -> None:
        [first] = world.table("ours").register("a", "host", 7, ["gpu:0"], 0)
        world.time += TTL + 1
        [second] = world.table("theirs").register("b", "host", 8, ["gpu:0"], 0)
        assert second.id == first.id and world.table("ours").slots() == []

    def test_the_first_worker_fixes_the_lease(self, world: AllocationWorld) -> None:
        world.join("a")
        later = world.open(ttl=5, grace=1)
        later.register("b", "host", 2, [], 1)
        assert (later.ttl, later.grace) == (30, 15)

    def test_a_pool_nobody_joined_is_empty(self, world: AllocationWorld) -> None:
        table = world.table()
        assert table.slots() == [] and table.workers() == [] and table.trials() == []
        assert table.elect("a") is None and table.reap() == 0
        assert table.orders("a").desired == () and table.orders("a").epoch == 0

    def test_a_deleted_study_has_no_orders_and_takes_no_writes(
        self, world: AllocationWorld
    ) -> None:
        if world.delete_study is None:
            pytest.skip("This store cannot delete a study.")
        slots = world.join("a", cpus=1)
        grant = world.grant("a")
        world.table().add_report("a", grant, 1, float("nan"), 1.0)
        world.delete_study("study")
        with pytest.raises(StudyGone):
            world.table().orders("a")
        with pytest.raises(LeaseLost):
            world.table().add_report("a", grant, 2, 0.5, 1.0)
        assert not world.table().release("a", grant, "paused", ended="pause")
        assert world.table().acquire("a", grant.number, slots) is None
        assert world.table().trials() == [] and world.table().reports() == []
        assert world.table().renew("a", grant.slots).offers is None, "the worker's row is gone too"

    def test_a_deleted_study_leaves_no_event(self, world: AllocationWorld) -> None:
        if world.delete_study is None:
            pytest.skip("This store cannot delete a study.")
        world.join("a", cpus=1, study="one")
        world.grant("a", study="one")
        world.join("b", cpus=1, study="two")
        one, two = world.table(study="one"), world.table(study="two")
        kept = two.events()
        world.delete_study("one")
        assert one.events() == [] and two.pool_events() == kept == two.events()
