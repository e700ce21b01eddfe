"""Tests of segments: reports, checkpoints and progress, also if an answer was lost.

A call whose answer was lost is repeated, or takes effect late; neither changes the result.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from allocation.suite.world import TTL, AllocationWorld, assert_legal, checkpoint

from optuna_deadline.allocation.records import NewReport
from optuna_deadline.errors import DeadlineError, LeaseLost


class WriteSuite:
    """A store keeps a segment's writes in order, and only while the segment is current."""

    def test_a_step_redone_keeps_its_first_value(self, world: AllocationWorld) -> None:
        world.join("a", cpus=1)
        grant = world.grant("a")
        for value in (0.5, 0.7):
            world.table().add_reports("a", grant, [NewReport(3, value, 1.0)])
        [row] = world.table().reports()
        assert (row.number, row.step, row.value, row.slots) == (grant.number, 3, 0.5, 1)
        assert (row.trained, row.at) == (1.0, world.time)

    def test_a_batch_of_reports_leaves_what_one_after_the_other_would(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=2)
        grant, other = world.grant("a"), world.grant("a")
        table = world.table()
        table.add_reports("a", grant, [NewReport(2, 0.2, 2.0)])
        new = [NewReport(step, step / 10, float(step)) for step in (1, 2, 3)]
        table.add_reports("a", grant, [*new, NewReport(3, 0.9, 9.0), NewReport(0, math.nan, 4.0)])
        table.add_reports("a", other, new)
        table.add_reports("a", other, [])
        rows = [row for row in table.reports() if row.number == grant.number]
        assert [(row.step, row.trained) for row in rows] == [
            (2, 2.0),
            (1, 1.0),
            (3, 3.0),
            (0, 4.0),
        ]
        assert [row.value for row in rows[:3]] == [0.2, 0.1, 0.3] and math.isnan(rows[3].value)
        assert [row.step for row in table.reports(number=other.number)] == [1, 2, 3]
        assert {row.at for row in table.reports()} == {world.time}

    def test_a_batch_of_reports_is_written_whole_or_not_at_all(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=1)
        grant = world.grant("a")
        world.lose(grant)
        for new in ([NewReport(1, 0.5, 1.0), NewReport(2, 0.5, 1.0)], []):
            with pytest.raises(LeaseLost):
                world.table().add_reports("a", grant, new)
        assert world.table().reports() == []

    def test_reports_and_the_checkpoints_among_them_are_written_whole_or_not_at_all(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=1)
        grant = world.grant("a")
        table = world.table()
        new = [NewReport(1, 0.5, 1.0), NewReport(2, 0.6, 2.0)]
        saved = [checkpoint(grant, step, 0.5) for step in (1, 2)]
        assert table.add_checkpoint("a", grant, *saved, reports=new) == []
        assert table.add_checkpoint("a", grant, *saved, reports=new) == []  # its answer was lost
        assert [(row.step, row.value) for row in table.reports()] == [(1, 0.5), (2, 0.6)]
        assert [row.step for row in table.checkpoints(grant.number)] == [2, 1]
        world.lose(grant)
        late = [NewReport(3, 0.7, 3.0)]
        with pytest.raises(LeaseLost):
            table.add_checkpoint("a", grant, checkpoint(grant, 3, 0.7), reports=late)
        assert len(table.reports()) == 2 and len(table.checkpoints(grant.number)) == 2

    def test_checkpoints_at_once_leave_what_one_after_the_other_would(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=2)
        values = [0.5, 0.1, None, 0.9, 0.3, math.nan, 0.2, None, 0.4, None, 0.6]
        for size in range(1, len(values) + 1):
            single, together = world.grant("a"), world.grant("a")
            table = world.table()
            gone: dict[int, set[str]] = {single.number: set(), together.number: set()}
            new = [(step, value) for step, value in enumerate(values)]
            for step, value in new:
                paths = table.add_checkpoint("a", single, checkpoint(single, step, value))
                gone[single.number] |= {str(path) for path in paths}
            for first in range(0, len(new), size):
                some = [checkpoint(together, *pair) for pair in new[first : first + size]]
                paths = table.add_checkpoint("a", together, *some)
                gone[together.number] |= {str(path) for path in paths}
            assert gone[single.number] == gone[together.number]
            one, other = (table.checkpoints(n) for n in gone)
            assert [(c.step, c.value) for c in one] == [(c.step, c.value) for c in other]
            for grant in (single, together):
                table.release("a", grant, "retired", ended="stop")

    def test_reports_are_read_on_from_where_one_stopped(self, world: AllocationWorld) -> None:
        world.join("a", cpus=2)
        grants = [world.grant("a"), world.grant("a")]
        for step in range(3):
            for grant in grants:
                world.table().add_reports("a", grant, [NewReport(step, 0.5, 1.0)])
        rows = world.table().reports()
        assert [(row.number, row.step) for row in rows] == [
            (n, s) for s in range(3) for n in (0, 1)
        ]
        assert world.table().reports(rows[3].id) == rows[4:]
        assert world.table().reports(rows[-1].id) == []

    def test_nan_and_infinity_come_back_as_they_went(self, world: AllocationWorld) -> None:
        world.join("a", cpus=1)
        grant = world.grant("a")
        for step, value in enumerate((math.nan, math.inf, -math.inf)):
            world.table().add_reports("a", grant, [NewReport(step, value, 1.0)])
        values = [row.value for row in world.table().reports()]
        assert math.isnan(values[0]) and values[1:] == [math.inf, -math.inf]

    def test_the_newest_two_checkpoints_and_the_best_are_kept(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=1)
        grant = world.grant("a")
        values = [0.1, 0.9, None, 0.2, 0.3, None]
        gone: list[str] = []
        for step, value in enumerate(values):
            paths = world.table().add_checkpoint("a", grant, checkpoint(grant, step, value))
            gone += [str(path) for path in paths]
        kept = [row.step for row in world.table().checkpoints(grant.number)]
        assert kept == [5, 4, 1, 0]  # two newest; best if maximised; best if minimised
        assert sorted(gone) == ["1-2.ckpt", "1-3.ckpt"]

    def test_checkpoints_are_forgotten_once_their_trial_has_ended(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=1)
        table, grant = world.table(), world.grant("a")
        saved = [checkpoint(grant, step, 1.0 / step) for step in (1, 2)]
        table.add_checkpoint("a", grant, *saved)
        assert table.drop_checkpoints(saved[0].path) == []  # it trains
        table.release("a", grant, "complete", ended="complete", value=0.5)
        assert table.drop_checkpoints(saved[0].path, Path("no file")) == [saved[0].path]
        assert [row.path for row in table.checkpoints()] == [saved[1].path]
        assert table.drop_checkpoints(saved[0].path) == []

    def test_a_checkpoint_of_nan_is_never_the_best(self, world: AllocationWorld) -> None:
        world.join("a", cpus=1)
        grant = world.grant("a")
        for step, value in enumerate((math.nan, 0.5, 0.1, 0.2, 0.3)):
            world.table().add_checkpoint("a", grant, checkpoint(grant, step, value))
        kept = [(row.step, row.value) for row in world.table().checkpoints()]
        assert kept == [(4, 0.3), (3, 0.2), (2, 0.1), (1, 0.5)]

    def test_I9_a_paused_trial_keeps_a_checkpoint_under_its_last_fence(
        self, world: AllocationWorld
    ) -> None:
        slots = world.join("a", cpus=1)
        grant = world.grant("a")
        table = world.table()
        for fence in (1, 2, 3):
            table.add_checkpoint("a", grant, checkpoint(grant, 10 * fence, 0.5))
            assert table.release("a", grant, "paused", ended="pause")
            [planned] = table.trials()
            newest = table.checkpoints(grant.number)[0]
            assert (planned.state, planned.fence, newest.fence) == ("paused", fence, fence)
            with pytest.raises(LeaseLost):  # it comes too late: the segment is over
                table.add_checkpoint("a", grant, checkpoint(grant, 99, 0.9))
            again = table.acquire("a", grant.number, slots)
            assert again is not None
            grant = again

    def test_training_seconds_add_up_over_segments(self, world: AllocationWorld) -> None:
        slots = world.join("a", cpus=1)
        grant = world.grant("a")
        table = world.table()
        for seconds in (2.0, 3.0):
            table.set_progress(
                "a", grant, startup=0.1, position_from=0, position_to=1, trained=seconds, horizon=9
            )
            table.release("a", grant, "paused", ended="pause")
            again = table.acquire("a", grant.number, slots)
            assert again is not None
            grant = again
        assert table.trained_before(grant.number, grant.fence) == 5.0
        assert table.trained_before(grant.number, 2) == 2.0
        table.set_progress(
            "a", grant, startup=None, position_from=1, position_to=2, trained=None, horizon=None
        )
        assert table.trials()[0].horizon == 9 and table.trials()[0].batch is None
        assert table.trials()[0].pausable is None
        table.set_progress(
            "a",
            grant,
            startup=None,
            position_from=1,
            position_to=2,
            trained=4.0,
            validated=1.5,
            waited=0.25,
            horizon=None,
            batch=64,
            pausable=False,
        )
        [known] = table.trials()
        assert (known.horizon, known.batch, known.pausable) == (9, 64, False)
        with pytest.raises(LeaseLost):
            table.set_progress(
                "b", grant, startup=9.0, position_from=9, position_to=9, trained=9.0, horizon=7
            )
        assert table.trials()[0].horizon == 9
        assert [row.fence for row in table.segments()] == [1, 2, 3]
        [running] = [row for row in table.segments() if row.ended is None]
        assert (running.position_from, running.startup) == (1, None)
        assert (running.trained, running.validated, running.waited) == (4.0, 1.5, 0.25)

    def test_a_limited_trial_is_granted_no_more_slots_than_it_can_train_on(
        self, world: AllocationWorld
    ) -> None:
        slots = world.join("a", cpus=2)
        grant, table = world.grant("a", slots=2), world.table()
        table.limit_slots("a", grant, 1, "its batches are whole")
        [planned] = table.trials()
        assert (planned.slot_limit, planned.limit_reason) == (1, "its batches are whole")
        assert table.orders("a").trials == (planned,) and table.unreported_trials() == [planned]
        assert table.renew("a", grant.slots).kept == set(grant.slots), "it trains until it leaves"
        table.release("a", grant, "paused", ended="limit")
        assert table.acquire("a", grant.number, slots) is None, "the plan is from before"
        world.plan("a", 1, grant.number)
        assert table.acquire("a", grant.number, slots[:1]) is not None

    def test_a_limit_is_lowered_and_never_raised_and_is_in_the_log_once_for_each_change(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=1)
        grant, table = world.grant("a"), world.table()
        for limit, reason in [(4, "four"), (4, "again"), (2, "two"), (3, "three")]:
            table.limit_slots("a", grant, limit, reason)
        assert (table.trials()[0].slot_limit, table.trials()[0].limit_reason) == (2, "two")
        events = [
            (e.number, e.fence, e.worker, e.detail) for e in table.events() if e.kind == "limit"
        ]
        assert events == [
            (grant.number, grant.fence, "a", {"slots": 4, "reason": "four"}),
            (grant.number, grant.fence, "a", {"slots": 2, "reason": "two"}),
        ]
        with pytest.raises(LeaseLost):
            table.limit_slots("b", grant, 1, "not its own")
        world.lose(grant)
        with pytest.raises(LeaseLost):
            table.limit_slots("a", grant, 1, "too late")
        assert table.trials()[0].slot_limit == 2


class LostAnswerSuite:
    """A repeated call has no further effect."""

    def test_acquiring_twice_never_gives_two_grants(self, world: AllocationWorld) -> None:
        slots = world.join("a", cpus=2)
        number = world.plan("a")
        table = world.table()
        assert table.acquire("a", number, slots[:1]) is not None  # the answer is lost
        assert table.acquire("a", number, slots[:1]) is None
        assert table.acquire("a", number, slots[1:]) is None
        assert [slot.fence for slot in table.slots()] == [1, 0]
        assert table.trials()[0].fence == 1

    def test_a_grant_nobody_heard_of_is_given_back(self, world: AllocationWorld) -> None:
        slots = world.join("a", cpus=2)
        number = world.plan("a", 2)
        table = world.table()
        assert table.acquire("a", number, slots) is not None  # the answer is lost
        [planned] = table.orders("a").trials
        assert (planned.owner, planned.fence) == ("a", 1)
        assert table.cancel_grant("a", number, planned.fence)
        [planned] = table.trials()
        assert (planned.owner, planned.state, planned.mode) == (None, "paused", "run")
        assert all(slot.holder is None for slot in table.slots())
        assert [row.outcome for row in table.segments()] == ["disowned"]
        again = table.acquire("a", number, slots)
        assert again is not None and again.fence == 2
        assert_legal(table.events())

    def test_disowning_touches_no_other_segment(self, world: AllocationWorld) -> None:
        slots = world.join("a", cpus=2)
        other = world.grant("a")
        number = world.plan("a")
        table = world.table()
        assert table.acquire("a", number, slots[1:]) is not None
        assert table.cancel_grant("a", number, 1)
        assert not table.cancel_grant("a", number, 1)
        new = table.acquire("a", number, slots[1:])
        assert new is not None
        assert not table.cancel_grant("a", number, 1)  # a request that arrives late
        assert table.renew("a", [*other.slots, *new.slots]).kept == {*other.slots, *new.slots}

    def test_disowning_keeps_the_count_of_failures(self, world: AllocationWorld) -> None:
        slots = world.join("a", cpus=1)
        grant = world.grant("a")
        table = world.table()
        table.release("a", grant, "paused", ended="died", failures=2)
        assert table.acquire("a", grant.number, slots) is not None
        assert table.cancel_grant("a", grant.number, 2)
        assert table.trials()[0].failures == 2

    def test_releasing_twice_changes_nothing_the_second_time(self, world: AllocationWorld) -> None:
        slots = world.join("a", cpus=1)
        grant = world.grant("a")
        table = world.table()
        assert table.release("a", grant, "paused", ended="pause")
        assert not table.release("a", grant, "failed", ended="error")
        again = table.acquire("a", grant.number, slots)
        assert again is not None
        assert not table.release("a", grant, "failed", ended="error")  # it arrives late
        assert table.renew("a", again.slots).kept == set(again.slots)
        assert_legal(table.events())

    def test_registering_twice_brings_the_slots_once(self, world: AllocationWorld) -> None:
        table = world.table()
        first = table.register("a", "host", 1, ["gpu:0"], 1)
        assert table.register("a", "host", 1, ["gpu:0"], 1) == first
        assert [slot.device for slot in table.slots()] == ["gpu:0", "cpu:0"]

    def test_a_worker_silent_for_long_offers_again_what_nobody_took(
        self, world: AllocationWorld
    ) -> None:
        table = world.table()
        mine = table.register("a", "host", 1, ["gpu:0", "gpu:1"], 0)
        world.time += TTL + 1
        table.register("b", "host", 2, ["gpu:1"], 0)
        with pytest.raises(DeadlineError):
            table.register("a", "host", 1, ["gpu:0", "gpu:1"], 0)
        assert table.register("a", "host", 1, ["gpu:0"], 0) == mine[:1]
        assert {worker.id for worker in table.workers()} == {"a", "b"}

    def test_a_checkpoint_committed_twice_has_one_row(self, world: AllocationWorld) -> None:
        world.join("a", cpus=1)
        grant = world.grant("a")
        table = world.table()
        gone = []
        for step, value in ((1, 0.9), (1, 0.9), (2, 0.5), (2, 0.5), (3, 0.4), (4, 0.3)):
            gone += table.add_checkpoint("a", grant, checkpoint(grant, step, value))
        # A file that a row names is never dropped: step 1 is the best model.
        kept = table.checkpoints(grant.number)
        assert [row.step for row in kept] == [4, 3, 1]
        assert not {row.path for row in kept} & set(gone)

    def test_a_batch_of_reports_written_again_is_there_once(self, world: AllocationWorld) -> None:
        world.join("a", cpus=1)
        grant = world.grant("a")
        table = world.table()
        new = [NewReport(step, step / 10, float(step)) for step in range(3)]
        table.add_reports("a", grant, new)  # the answer is lost, and another report follows
        table.add_reports("a", grant, [*new, NewReport(3, 0.3, 3.0)])
        assert [(row.step, row.value) for row in table.reports()] == [
            (0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3),
        ]  # fmt: skip

    def test_checkpoints_committed_twice_at_once_have_one_row_each(
        self, world: AllocationWorld
    ) -> None:
        world.join("a", cpus=1)
        grant = world.grant("a")
        table = world.table()
        new = [checkpoint(grant, step, value) for step, value in ((1, 0.9), (2, 0.5), (3, 0.7))]
        table.add_checkpoint("a", grant, *new)
        gone = table.add_checkpoint("a", grant, *new, checkpoint(grant, 4, 0.6))
        kept = table.checkpoints(grant.number)
        assert [row.step for row in kept] == [4, 3, 2, 1]
        assert not {str(row.path) for row in kept} & {str(path) for path in gone}

    def test_opening_and_settling_twice_is_once(self, world: AllocationWorld) -> None:
        world.join("a", cpus=1)
        number = world.plan("a")
        table = world.table()
        term = table.elect_planner("planner")
        assert term is not None
        table.open_trial("planner", term, number, 100 + number)
        [planned] = table.trials()
        assert (planned.mode, planned.worker) == ("run", "a")
        assert table.settle("planner", term)
        assert table.settle("planner", term)
        kinds = [event.kind for event in table.events()]
        assert (kinds.count("open"), kinds.count("settle")) == (1, 1)
