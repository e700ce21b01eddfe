"""Tests of pools: offers of workers, several studies in one pool, and compatible hosts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from allocation.suite.world import (
    GRACE,
    TTL,
    AllocationWorld,
    assert_legal,
    checkpoint,
)

from optuna_deadline.allocation.records import Account, MachineInfo, NewReport, StudyClaim
from optuna_deadline.errors import DeadlineError, LeaseLost, StudyGone


class MembershipSuite:
    """Workers join and leave; within a study, one live worker offers a slot."""

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
        """It offers again, and keeps the slots that are still free."""
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
        """Except what it holds, until that was reaped."""
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
        assert table.elect_planner("a") is None and table.reap() == 0
        assert table.orders("a").trials == () and table.orders("a").epoch == 0

    def test_a_deleted_study_has_no_orders_and_takes_no_writes(
        self, world: AllocationWorld
    ) -> None:
        if world.delete_study is None:
            pytest.skip("This store cannot delete a study.")
        slots = world.join("a", cpus=1)
        grant = world.grant("a")
        world.table().add_reports("a", grant, [NewReport(1, float("nan"), 1.0)])
        world.delete_study("study")
        with pytest.raises(StudyGone):
            world.table().orders("a")
        with pytest.raises(LeaseLost):
            world.table().add_reports("a", grant, [NewReport(2, 0.5, 1.0)])
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


class SharingSuite:
    """A slot belongs to its host; the study to which it is lent may acquire it."""

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
        assert (one.lent, two.lent) == ({"c": 1}, {"b": 3}), (
            "a new worker has what no other offers"
        )
        assert (one.lease, two.lease) == (None, None)

    def test_a_roster_tells_when_the_first_lease_in_reach_ends(
        self, world: AllocationWorld
    ) -> None:
        """Also on the slot of a dead worker, since it has to be reaped."""
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
        events = one.pool_events(kinds=("register", "lend"))
        assert events == two.pool_events(kinds=("register", "lend"))
        assert [(event.kind, event.study_id) for event in events] == [
            ("register", one.study_id), ("register", two.study_id), ("lend", two.study_id),
        ]  # fmt: skip
        assert one.pool_events(events[-1].id, ("lend",)) == []
        assert all(event.study_id == one.study_id for event in one.events())

    def test_a_slot_outlives_the_worker_that_brought_it(self, world: AllocationWorld) -> None:
        """Another study's worker of the host still offers it; its holder is reaped first."""
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
        assert (one.elect_planner("a"), two.elect_planner("b")) == (1, 1)
        assert (one.elect_leader("a"), two.elect_leader("b")) == (1, None)
        one.leave("a")
        assert two.elect_leader("b") == 2
        world.time += TTL + 1
        assert (one.elect_planner("c"), two.elect_leader("b")) == (2, 3)

    def test_an_old_term_neither_lends_nor_claims(self, world: AllocationWorld) -> None:
        [slot] = world.join("a", cpus=1, study="one")
        world.join("b", cpus=1, study="two")
        one, two = world.table(study="one"), world.table(study="two")
        led, planned = one.elect_leader("a"), one.elect_planner("a")
        assert led is not None and planned is not None
        world.time += TTL + 1
        assert two.elect_leader("b") == led + 1 and one.elect_planner("c") == planned + 1
        with pytest.raises(LeaseLost):
            one.lend("a", led, {slot: two.study_id}, {})
        with pytest.raises(LeaseLost):
            one.set_claim("a", planned, StudyClaim(1, 1, 0.0, None))
        assert one.slots()[0].lent_to == one.study_id
        assert [tenant.claim for tenant in one.tenants()] == [None, None]

    def test_the_pool_knows_its_studies_and_keeps_their_accounts(
        self, world: AllocationWorld
    ) -> None:
        world.table(study="one").register("a", "host", 1, [], 2, 3.0)
        world.join("b", cpus=2, study="two")
        one, two = world.table(study="one"), world.table(study="two")
        term, planned = one.elect_leader("a"), two.elect_planner("b")
        assert term is not None and planned is not None
        claim = StudyClaim(
            live=4, most=2, done=7.5, remaining=None, work=90.0, span=12.5, restart=3.0
        )
        two.set_claim("b", planned, claim)
        world.time += 10
        had = {one.study_id: Account(2, 1.5, 0.01), two.study_id: Account(rate=0.5)}
        one.lend("a", term, {}, had)
        first, second = one.tenants()
        assert (first.study_id, first.weight, first.claim) == (one.study_id, 3.0, None)
        assert (second.study_id, second.weight, second.claim) == (two.study_id, 1.0, claim)
        assert (first.served, first.entitled) == pytest.approx((20, 15))
        assert (second.served, second.entitled) == pytest.approx((0, 5))
        assert (first.spent, second.spent) == pytest.approx((0.1, 0.0))
        one.register("a", "host", 1, [], 2, None)
        two.register("b", "host", 1, [], 2, 0.5)
        assert [tenant.weight for tenant in one.tenants()] == [3.0, 0.5]

    def test_a_worker_that_died_in_a_settled_study_offers_nothing_to_the_next(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=1, study="one")
        one = world.table(study="one")
        term = one.elect_planner("a")
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
        term = one.elect_planner("a")
        assert term is not None
        one.settle("a", term)
        assert [row.study_id for row in one.tenants()] == [world.table(study="two").study_id]


def _lend(world: AllocationWorld, slot: int, study_id: int) -> None:
    table = world.table(study="one")
    term = table.elect_leader("leader")
    assert term is not None
    table.lend("leader", term, {slot: study_id}, {})


class AdmissionSuite:
    """A worker's names, devices and versions are checked when it joins."""

    def test_two_machines_of_one_name_are_told_so(self, world: AllocationWorld) -> None:
        table = world.table()
        table.register("a", "node", 7, [], 1, None, MachineInfo(machine="m1"))
        with pytest.raises(DeadlineError, match=r"Two machines are called 'node': .*process 7"):
            table.register("b", "node", 8, [], 1, None, MachineInfo(machine="m2"))
        table.register("c", "node", 9, [], 1, None, MachineInfo(machine="m1"))
        assert {row.id for row in table.workers()} == {"a", "c"}

    def test_a_machine_that_was_restarted_has_its_name_again(self, world: AllocationWorld) -> None:
        table = world.table()
        table.register("a", "node", 7, [], 1, None, MachineInfo(machine="m1"))
        world.time += TTL + 1
        table.register("b", "node", 8, [], 1, None, MachineInfo(machine="m2"))
        [worker] = table.workers()
        assert (worker.id, worker.machine) == ("b", "m2")

    def test_a_gpu_is_known_by_its_uuid_under_any_name(self, world: AllocationWorld) -> None:
        _several_hosts(world)
        ours, theirs = world.table("ours"), world.table("theirs", "other")
        [slot] = ours.register(
            "a", "one", 7, ["gpu:0"], 0, None, MachineInfo(uuids={"gpu:0": "U0"})
        )
        assert slot.uuid == "U0"
        with pytest.raises(DeadlineError, match="gpu:3 is gpu:0 of 'one'"):
            theirs.register("b", "two", 8, ["gpu:3"], 0, None, MachineInfo(uuids={"gpu:3": "U0"}))
        theirs.register("b", "two", 8, ["gpu:3"], 0, None, MachineInfo(uuids={"gpu:3": "U3"}))

    def test_a_name_is_one_gpus_while_somebody_offers_it(self, world: AllocationWorld) -> None:
        one, two = world.table(study="one"), world.table(study="two")
        one.register("a", "node", 7, ["gpu:0"], 0, None, MachineInfo(uuids={"gpu:0": "U0"}))
        with pytest.raises(DeadlineError, match="gpu:0 of 'node' is a different GPU"):
            two.register("b", "node", 8, ["gpu:0"], 0, None, MachineInfo(uuids={"gpu:0": "U1"}))
        two.register("b", "node", 8, ["gpu:0"], 0, None, MachineInfo(uuids={"gpu:0": "U0"}))

    def test_gpus_may_be_numbered_anew_once_nobody_offers_them(
        self, world: AllocationWorld
    ) -> None:
        table, devices = world.table(), ["gpu:0", "gpu:1"]
        uuids = {"gpu:0": "U0", "gpu:1": "U1"}
        table.register("a", "node", 7, devices, 0, None, MachineInfo(uuids=uuids))
        table.leave("a")
        world.time += 0.1
        turned = {"gpu:0": "U1", "gpu:1": "U0"}
        slots = table.register("b", "node", 8, devices, 0, None, MachineInfo(uuids=turned))
        assert {slot.device: slot.uuid for slot in slots} == turned

    def test_one_study_runs_one_series_of_versions(self, world: AllocationWorld) -> None:
        _several_hosts(world)
        table, other = world.table(), world.table(study="other")
        installed = "optuna-deadline 0.1.0, torch 2.13.0+cpu"
        table.register("a", "one", 7, [], 1, None, MachineInfo(versions=installed))
        with pytest.raises(DeadlineError, match=r"torch 2\.13\.0\+cpu \(on one\).*install torch"):
            table.register("b", "two", 8, [], 1, None, MachineInfo(versions="torch 2.12.1"))
        with pytest.raises(DeadlineError, match=r"install optuna-deadline 0\.1 here"):
            table.register(
                "b", "two", 8, [], 1, None, MachineInfo(versions="optuna-deadline 0.2.0")
            )
        table.register("b", "two", 8, [], 1, None, MachineInfo(versions="torch 2.13.1+cu130"))
        other.register("c", "three", 9, [], 1, None, MachineInfo(versions="torch 2.12.1"))

    def test_a_study_is_in_one_pool_at_a_time(self, world: AllocationWorld) -> None:
        world.join("a")
        lab = world.table("lab")
        words = r"in the pool 'pool' \(process 1 on host\).*'lab': give it pool='pool'"
        with pytest.raises(DeadlineError, match=words):
            lab.register("b", "host", 2, [], 1)
        world.table("lab", "other").register("c", "host", 3, [], 1)
        world.table().leave("a")
        assert len(lab.register("b", "host", 2, [], 1)) == 1
        world.time += TTL + 1
        assert len(world.table().register("d", "host", 4, [], 1)) == 1

    def test_a_silent_worker_whose_study_went_on_in_another_pool_plans_no_more(
        self, world: AllocationWorld
    ) -> None:
        world.join("a")
        assert world.table().elect_planner("a") == 1
        world.time += TTL + 1
        lab = world.table("lab")
        lab.register("b", "host", 2, [], 1)
        assert lab.elect_planner("b") == 1
        world.table().renew("a", [])
        assert world.table().elect_planner("a") is None
        world.time += TTL / 2
        lab.renew("b", [])
        assert lab.elect_planner("b") == 1

    def test_a_checkpoint_has_the_home_of_who_wrote_it(self, world: AllocationWorld) -> None:
        table = world.table()
        table.register("a", "one", 7, [], 1, None, MachineInfo(store="mark:/folder"))
        grant = world.grant("a")
        table.add_checkpoint("a", grant, checkpoint(grant, 1, 0.5))
        [home] = table.checkpoint_origins()
        assert (home.number, home.path) == (grant.number, checkpoint(grant, 1).path)
        assert (home.host, home.store, home.state) == ("one", "mark:/folder", "live")
        assert (
            table.checkpoint_origins(number=grant.number) == [home]
            and table.checkpoint_origins(after=home.id) == []
        )
        assert table.checkpoint_origins(number=grant.number + 1) == []
        table.leave("a")
        assert table.checkpoint_origins()[0].state == "left"


def _several_hosts(world: AllocationWorld) -> None:
    if world.one_host:
        pytest.skip("This store serves one host only.")
