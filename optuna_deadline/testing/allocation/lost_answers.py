"""A call whose answer was lost is made again, or comes to light later: neither does harm."""

from __future__ import annotations

import pytest

from optuna_deadline.allocation.records import NewReport
from optuna_deadline.errors import DeadlineError
from optuna_deadline.testing.allocation.world import TTL, AllocationWorld, assert_legal, checkpoint


class LostAnswerSuite:
    """What is done twice counts once."""

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
        [line] = table.orders("a").desired
        assert (line.owner, line.fence) == ("a", 1)
        assert table.disown("a", number, line.fence)
        [line] = table.trials()
        assert (line.owner, line.state, line.mode) == (None, "paused", "run")
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
        assert table.disown("a", number, 1)
        assert not table.disown("a", number, 1)
        new = table.acquire("a", number, slots[1:])
        assert new is not None
        assert not table.disown("a", number, 1)  # a request that arrives late
        assert table.renew("a", [*other.slots, *new.slots]).kept == {*other.slots, *new.slots}

    def test_disowning_keeps_the_count_of_failures(self, world: AllocationWorld) -> None:
        slots = world.join("a", cpus=1)
        grant = world.grant("a")
        table = world.table()
        table.release("a", grant, "paused", ended="died", failures=2)
        assert table.acquire("a", grant.number, slots) is not None
        assert table.disown("a", grant.number, 2)
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
        # A file that a row still names is never given up: step 1 is the best model.
        kept = table.checkpoints(grant.number)
        assert [row.step for row in kept] == [4, 3, 1]
        assert not {row.path for row in kept} & set(gone)

    def test_a_batch_of_reports_written_again_is_there_once(self, world: AllocationWorld) -> None:
        world.join("a", cpus=1)
        grant = world.grant("a")
        table = world.table()
        new = [NewReport(step, step / 10, float(step)) for step in range(3)]
        table.add_reports("a", grant, new)  # the answer is lost, and more is said meanwhile
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
        term = table.elect("planner")
        assert term is not None
        table.open_trial("planner", term, number, 100 + number)
        [line] = table.trials()
        assert (line.mode, line.worker) == ("run", "a")
        assert table.settle("planner", term)
        assert table.settle("planner", term)
        kinds = [event.kind for event in table.events()]
        assert (kinds.count("open"), kinds.count("settle")) == (1, 1)
