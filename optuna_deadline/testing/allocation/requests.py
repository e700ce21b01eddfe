"""What people ask for stands on the table, and nothing is granted against it."""

from __future__ import annotations

from optuna_deadline.testing.allocation.world import TTL, AllocationWorld


class RequestSuite:
    """Trials held and pinned, hosts drained."""

    def test_a_held_trial_is_granted_nothing_until_it_is_let_go(
        self, world: AllocationWorld
    ) -> None:
        slots = world.join("a", cpus=1)
        number, table = world.plan("a"), world.table()
        assert table.hold(number, True)
        assert table.acquire("a", number, slots) is None
        [line] = table.orders("a").desired
        assert line.held == world.time and line == table.trials()[0] == table.untold()[0]
        assert table.hold(number, False) and table.trials()[0].held is None
        assert table.acquire("a", number, slots) is not None

    def test_who_is_held_while_it_trains_keeps_its_slots_until_it_releases(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=1)
        grant, table = world.grant("a"), world.table()
        assert table.hold(grant.number, True)
        assert table.renew("a", grant.slots).kept == set(grant.slots)
        table.add_report("a", grant, 1, 0.5, 1.0)
        assert table.release("a", grant, "paused", ended="pause")
        assert table.trials()[0].held == world.time

    def test_a_request_outlives_plans_segments_and_terms(self, world: AllocationWorld) -> None:
        world.join("a", cpus=1)
        number, table = world.plan("a"), world.table()
        assert table.pin(number, 3) and table.trials()[0].pinned == 3
        grant = table.acquire("a", number, table.free_slots("a"))
        assert grant is not None
        table.release("a", grant, "paused", ended="pause")
        table.hold(number, True)
        since, world.time = world.time, world.time + TTL + 1
        assert table.elect("b") is not None
        table.hold(number, True)
        assert (table.trials()[0].held, table.trials()[0].pinned) == (since, 3)
        assert table.pin(number, None) and table.trials()[0].pinned is None

    def test_what_has_ended_or_is_not_there_takes_no_request(self, world: AllocationWorld) -> None:
        world.join("a", cpus=1)
        grant, table = world.grant("a"), world.table()
        table.release("a", grant, "complete", ended="complete", value=0.5)
        before = (table.trials(), len(table.events()))
        for number in (grant.number, 99):
            assert not table.hold(number, True) and not table.pin(number, 2)
        assert (table.trials(), len(table.events())) == before

    def test_a_request_is_in_the_log_once_for_each_change(self, world: AllocationWorld) -> None:
        world.join("a", cpus=1)
        number, table = world.plan("a"), world.table()
        for _ in range(2):
            table.hold(number, True)
            table.pin(number, 2)
            table.drain("host", True)
        table.hold(number, False)
        table.pin(number, None)
        table.drain("host", False)
        asked = [e for e in table.events() if e.kind in ("hold", "pin", "drain")]
        assert [(e.kind, e.number, e.worker, e.detail) for e in asked] == [
            ("hold", number, None, {"held": True}),
            ("pin", number, None, {"slots": 2}),
            ("drain", None, "a", {"host": "host", "drained": True}),
            ("hold", number, None, {"held": False}),
            ("pin", number, None, {"slots": None}),
            ("drain", None, "a", {"host": "host", "drained": False}),
        ]

    def test_a_drained_worker_offers_nothing_and_is_granted_nothing(
        self, world: AllocationWorld
    ) -> None:
        slots = world.join("a", cpus=2)
        grant, number, table = world.grant("a"), world.plan("a"), world.table()
        free = table.free_slots("a")
        assert table.drain("host", True) == 1
        assert table.orders("a").drained and not table.orders("b").drained
        assert [row.drained for row in table.workers()] == [world.time]
        assert [slot.offered_by for slot in table.slots()] == [(), ()]
        assert table.free_slots("a") == [] and table.acquire("a", number, free) is None
        assert table.renew("a", grant.slots).kept == set(grant.slots)
        assert table.renew("a", []).offers == 2, "it is no stranger to its slots"
        assert table.drain("host", False) == 1 and not table.orders("a").drained
        assert table.free_slots("a") == free and table.acquire("a", number, free) is not None
        assert [slot.id for slot in table.slots() if slot.offered_by] == slots

    def test_a_drained_host_is_drained_of_every_study_of_the_pool(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", study="one")
        world.join("b", study="two")
        assert world.table(study="one").drain("host", True) == 2
        assert world.table(study="two").orders("b").drained
        assert not any(slot.offered_by for slot in world.table(study="two").slots())
        assert world.table(study="one").drain("elsewhere", True) == 0

    def test_only_who_is_there_is_drained(self, world: AllocationWorld) -> None:
        world.join("a", cpus=1)
        table = world.table()
        table.drain("host", True)
        world.join("a", cpus=1)
        assert table.orders("a").drained, "the same worker, which registered again"
        table.leave("a")
        assert table.drain("host", True) == 0
        world.join("b", cpus=1)
        assert not table.orders("b").drained
        assert [slot.offered_by for slot in table.slots()] == [("b",)]
