"""Tests of plans: one planner at a time writes, and grants respect users' requests."""

from __future__ import annotations

import pytest
from allocation.suite.world import TTL, AllocationWorld

from optuna_deadline.allocation.records import Assignment, NewReport
from optuna_deadline.errors import LeaseLost


class PlanSuite:
    """Elections, plans, and the ends of trials."""

    def test_one_rules_until_its_lease_runs_out(self, world: AllocationWorld) -> None:
        world.join("a")
        table = world.table()
        assert table.elect_planner("a") == 1
        assert table.elect_planner("a") == 1
        assert table.elect_planner("b") is None
        world.time += TTL + 1
        assert table.elect_planner("b") == 2
        assert table.elect_planner("a") is None

    def test_the_same_planner_after_a_gap_has_a_new_term(self, world: AllocationWorld) -> None:
        world.join("a")
        assert world.table().elect_planner("a") == 1
        world.time += TTL + 1
        assert world.table().elect_planner("a") == 2

    def test_leaving_hands_the_leadership_on_at_once(self, world: AllocationWorld) -> None:
        world.join("a")
        assert world.table().elect_planner("a") == 1
        world.table().leave("a")
        assert world.table().elect_planner("a") is None
        assert world.table().elect_planner("b") == 2

    def test_who_has_left_leads_no_more(self, world: AllocationWorld) -> None:
        world.join("a")
        assert world.table().elect_leader("a") == 1
        world.table().leave("a")
        assert world.table().elect_leader("a") is None
        assert world.table().elect_leader("b") == 2

    def test_I6_an_old_term_writes_nothing(self, world: AllocationWorld) -> None:
        world.join("a")
        table = world.table()
        old = table.elect_planner("a")
        assert old is not None
        table.open_trial("a", old, 0, 100)
        world.time += TTL + 1
        assert table.elect_planner("b") == old + 1
        before = (table.trials(), table.orders("a"), len(table.events()))
        planned = Assignment(0, "run", "a", 1, "late")
        for write in (
            lambda: table.write_plan("a", old, [planned]),
            lambda: table.open_trial("a", old, 99, 99),
            lambda: table.conclude("a", old, 0, "retired", "late"),
            lambda: table.set_gate("a", old, False),
            lambda: table.settle("a", old),
            lambda: table.resize_pool("a", old, 1, world.time),
        ):
            with pytest.raises(LeaseLost):
                write()
        assert (table.trials(), table.orders("a"), len(table.events())) == before

    def test_I6_epochs_rise_with_each_plan_and_over_terms(self, world: AllocationWorld) -> None:
        world.join("a")
        table = world.table()
        epochs = []
        for planner in ("a", "a", "b", "a"):
            term = table.elect_planner(planner)
            assert term is not None
            epochs += [table.write_plan(planner, term, []) for _ in range(2)]
            world.time += TTL + 1
        assert epochs == list(range(1, 9))
        assert table.orders("a").epoch == 8

    def test_a_plan_changes_what_it_names_and_nothing_else(self, world: AllocationWorld) -> None:
        world.join("a", cpus=2)
        first, second = world.plan("a"), world.plan("a")
        table = world.table()
        term = table.elect_planner("planner")
        assert term is not None
        world.time += 5
        table.write_plan("planner", term, [Assignment(first, "pause", None, 0, "rest")])
        planned_rows = {planned.number: planned for planned in table.trials()}
        changed, kept = planned_rows[first], planned_rows[second]
        assert (changed.mode, changed.worker, changed.slots) == ("pause", None, 0)
        assert (changed.reason, changed.since) == ("rest", world.time)
        assert (kept.mode, kept.worker, kept.since) == ("run", "a", world.time - 5)
        [event] = [event for event in table.events() if event.at == world.time]
        assert (event.kind, event.number, event.term) == ("plan", first, term)
        assert event.detail == {"mode": "pause", "slots": 0, "reason": "rest"}

    def test_a_plan_never_moves_the_holder_of_a_slot(self, world: AllocationWorld) -> None:
        world.join("a", cpus=1)
        world.join("b", cpus=1)
        grant = world.grant("a")
        world.plan("b", number=grant.number)
        [planned] = world.table().trials()
        assert (planned.owner, planned.worker) == ("a", "b")
        assert world.table().renew("a", grant.slots).kept == set(grant.slots)

    def test_a_trial_in_training_is_not_concluded(self, world: AllocationWorld) -> None:
        world.join("a", cpus=1)
        grant = world.grant("a")
        table = world.table()
        term = table.elect_planner("planner")
        assert term is not None
        assert not table.conclude("planner", term, grant.number, "retired", "no")
        table.release("a", grant, "paused", ended="pause")
        assert table.conclude("planner", term, grant.number, "retired", "yes")
        assert not table.conclude("planner", term, grant.number, "complete", "twice", 1.0)

    @pytest.mark.parametrize("end", ["retired", "failed"])
    def test_an_end_that_optuna_does_not_know_may_become_the_winners(
        self, world: AllocationWorld, end: str
    ) -> None:
        world.join("a", cpus=1)
        grant = world.grant("a")
        table = world.table()
        table.release("a", grant, end, ended="stop")
        term = table.elect_planner("planner")
        assert term is not None
        win = ("planner", term, grant.number, "complete", "the best model", 0.5)
        assert not table.conclude(*win)
        assert table.conclude(*win, unreported=True)
        [planned] = table.unreported_trials()
        assert (planned.state, planned.value, planned.reason) == (
            "complete",
            0.5,
            "the best model",
        )
        assert not table.conclude("planner", term, grant.number, "retired", "no", unreported=True)

    def test_an_end_that_optuna_knows_stays_as_it_is(self, world: AllocationWorld) -> None:
        world.join("a", cpus=1)
        grant = world.grant("a")
        table = world.table()
        table.release("a", grant, "retired", ended="stop")
        table.mark_ends_reported(grant.number)
        term = table.elect_planner("planner")
        assert term is not None
        assert not table.conclude(
            "planner", term, grant.number, "complete", "the best model", 0.5, unreported=True
        )
        assert [planned.state for planned in table.trials()] == ["retired"]

    def test_trials_retire_together_but_those_in_training(self, world: AllocationWorld) -> None:
        world.join("a", cpus=1)
        grant = world.grant("a")
        table = world.table()
        term = table.elect_planner("planner")
        assert term is not None
        for number in (1, 2, 3):
            table.open_trial("planner", term, number, 100 + number)
        assert table.conclude("planner", term, 3, "complete", "done", 0.5)
        reasons = {2: "worse", 1: "late", 3: "late", grant.number: "late", 99: "unknown"}
        assert table.retire("planner", term, reasons) == 2
        assert table.retire("planner", term, reasons) == 0
        rows = [
            (planned.number, planned.state, planned.mode, planned.reason)
            for planned in table.trials()
        ]
        assert rows[1:3] == [(1, "retired", "stop", "late"), (2, "retired", "stop", "worse")]
        assert [rows[0][1], rows[3][1]] == ["running", "complete"]
        events = table.events(kinds=("retired",))
        assert [(event.number, event.detail["reason"]) for event in events] == [
            (1, "late"), (2, "worse"),
        ]  # fmt: skip
        table.mark_ends_reported(1, 2, 99)
        assert [planned.number for planned in table.unreported_trials()] == [grant.number, 3]
        with pytest.raises(LeaseLost):
            table.retire("planner", term - 1, {1: "late"})

    def test_a_trial_that_has_ended_stays_as_it_is(self, world: AllocationWorld) -> None:
        slots = world.join("a", cpus=1)
        grant = world.grant("a")
        table = world.table()
        table.release("a", grant, "complete", ended="complete", value=0.5)
        world.plan("a", number=grant.number)
        assert table.acquire("a", grant.number, slots) is None
        assert table.unreported_trials() == table.trials()
        table.mark_ends_reported(grant.number)
        assert table.unreported_trials() == []
        [planned] = table.trials()
        assert (planned.state, planned.value, planned.end_reported) == ("complete", 0.5, True)

    def test_living_trials_are_untold_and_come_by_number(self, world: AllocationWorld) -> None:
        world.join("a", cpus=2)
        table = world.table()
        term = table.elect_planner("planner")
        assert term is not None
        for number in (3, 1, 2):
            table.open_trial("planner", term, number, 100 + number)
        assert table.conclude("planner", term, 2, "retired", "no")
        assert [planned.number for planned in table.unreported_trials()] == [1, 2, 3]
        assert table.unreported_trials() == table.trials()
        table.mark_ends_reported(2)
        assert [planned.number for planned in table.unreported_trials()] == [1, 3]

    def test_a_study_is_not_closed_at_a_deadline_that_has_moved(
        self, world: AllocationWorld
    ) -> None:
        world.join("a")
        table = world.table()
        term = table.elect_planner("planner")
        assert term is not None
        assert not table.settle("planner", term, world.deadline - 60)
        assert not table.orders("a").settled
        assert "settle" not in [event.kind for event in table.events()]
        assert table.settle("planner", term, world.deadline)
        assert table.orders("a").settled

    def test_orders_say_whether_the_gate_is_open(self, world: AllocationWorld) -> None:
        world.join("a")
        table = world.table()
        term = table.elect_planner("a")
        assert term is not None
        assert table.orders("a").gate_open
        table.set_gate("a", term, False)
        assert not table.orders("a").gate_open

    def test_the_gate_is_in_the_log_once_for_each_change(self, world: AllocationWorld) -> None:
        world.join("a")
        table = world.table()
        term = table.elect_planner("a")
        assert term is not None
        for is_open in (True, False, False, True):
            table.set_gate("a", term, is_open)
        gates = [event.detail for event in table.events() if event.kind == "gate"]
        assert gates == [{"open": False}, {"open": True}]

    def test_the_log_is_read_on_from_where_one_stopped(self, world: AllocationWorld) -> None:
        world.join("a")
        world.plan("a")
        events = world.table().events()
        assert [event.kind for event in events] == ["register", "elect", "open", "plan"]
        assert world.table().events(events[1].id) == events[2:]
        assert world.table("another").events() == events, "the log of a study is in one piece"
        assert world.table(study="another").events() == []

    @pytest.mark.parametrize("step", [3600.0, -3600.0])
    def test_the_deadline_moves_with_a_clock_that_was_set(
        self, world: AllocationWorld, step: float
    ) -> None:
        world.join("a")
        table = world.table()
        term = table.elect_planner("a")
        assert term is not None
        before = table.orders("a")
        table.database.clock.stepped += 1.0
        assert table.orders("a").deadline == before.deadline, "not worth a change"
        table.database.clock.stepped += step - 1.0
        world.time += step
        seen = table.orders("a")
        assert (seen.deadline, seen.clock_step) == (before.deadline + step, step)
        assert seen.started == before.started + step
        assert table.follow_clock("a", term, step, before.deadline)
        assert not table.follow_clock("a", term, step, before.deadline), "another one was first"
        after = table.orders("a")
        assert (after.deadline, after.clock_step) == (before.deadline + step, 0.0)
        assert after.started == before.started + step, "for each planner that comes later"
        assert [e.detail["step"] for e in table.events() if e.kind == "clock"] == [step]
        with pytest.raises(LeaseLost):
            table.follow_clock("a", term + 1, step, after.deadline)

    def test_of_an_ended_studys_events_the_numbers_stay(self, world: AllocationWorld) -> None:
        world.join("a")
        world.join("gone")
        grant = world.grant("a")
        table = world.table()
        table.add_reports("a", grant, [NewReport(1, 0.5, 1.0)])
        table.release("a", grant, "complete", ended="complete", value=0.5)
        table.leave("gone")
        assert table.fold() == (0, 0), "it has not ended"
        term = table.elect_planner("planner")
        assert term is not None and table.settle("planner", term)
        before = table.trials(), table.reports(), table.segments(), table.tenants()
        folded = ("checkpoint", "gate", "elect")
        many = [event.kind for event in table.events() if event.kind in folded]
        kept = [event for event in table.events() if event.kind not in folded]
        assert many and table.fold() == (len(many), 1)
        *stay, sums = table.events()
        assert stay == kept and sums.kind == "fold"
        assert sums.detail["events"] == {kind: many.count(kind) for kind in many}
        assert (table.trials(), table.reports(), table.segments(), table.tenants()) == before
        assert table.fold() == (0, 0), "nothing is left to fold"


class RequestSuite:
    """Trials held and pinned, hosts drained."""

    def test_a_held_trial_is_granted_nothing_until_it_is_let_go(
        self, world: AllocationWorld
    ) -> None:
        slots = world.join("a", cpus=1)
        number, table = world.plan("a"), world.table()
        assert table.hold(number, True)
        assert table.acquire("a", number, slots) is None
        [planned] = table.orders("a").trials
        assert (
            planned.held == world.time
            and planned == table.trials()[0] == table.unreported_trials()[0]
        )
        assert table.hold(number, False) and table.trials()[0].held is None
        assert table.acquire("a", number, slots) is not None

    def test_who_is_held_while_it_trains_keeps_its_slots_until_it_releases(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=1)
        grant, table = world.grant("a"), world.table()
        assert table.hold(grant.number, True)
        assert table.renew("a", grant.slots).kept == set(grant.slots)
        table.add_reports("a", grant, [NewReport(1, 0.5, 1.0)])
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
        assert table.elect_planner("b") is not None
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

    def test_a_slot_out_of_use_is_not_offered_until_it_is_tried_again(
        self, world: AllocationWorld
    ) -> None:
        """Others that offer it judge it themselves."""
        bad, good = world.join("a", cpus=2)
        number, table = world.plan("a"), world.table()
        for _ in range(2):  # repeated after a lost answer
            table.set_in_use("a", bad, False, "device lost")
        assert table.free_slots("a") == [good] and table.acquire("a", number, [bad]) is None
        assert table.renew("a", []).offers == 1
        assert table.roster().lent == {"a": 1}
        for _ in range(2):
            table.set_in_use("a", bad, True, "device lost")
        assert sorted(table.free_slots("a")) == sorted([bad, good])
        last = table.events(kinds=["device"])[-1]
        assert (last.worker, last.slot) == ("a", bad)
        assert last.detail == {
            "host": "host", "device": "cpu:0", "in_use": True, "reason": "device lost",
        }  # fmt: skip
        table.leave("a")
        table.set_in_use("a", bad, True, "")
        assert not any(slot.offered_by for slot in table.slots())

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
