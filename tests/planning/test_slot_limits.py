"""A trial that cannot train on many slots has no more, and others have the rest."""

from __future__ import annotations

import pytest

from optuna_deadline.allocation.records import Grant, PlannedTrial, SegmentRow
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.planning.limits import SlotLimits
from optuna_deadline.planning.planner import Planner
from optuna_deadline.policies import Order, Pause, Plan, Run, Snapshot
from optuna_deadline.simulation.environment import CountedTrials


class LargestFirst:
    """Of two trials, the largest gang that there can be for the first, the rest for the other.

    Args:
        trials: How many are opened, as long as two live.
    """

    def __init__(self, trials: int) -> None:
        self.trials = trials

    def plan(self, snapshot: Snapshot) -> Plan:
        orders: dict[int, Order] = {}
        left = snapshot.capacity
        for trial in snapshot.trials:
            if trial.alive:
                size = min(left, snapshot.largest_gang)
                orders[trial.number] = Run(size, "fits") if size else Pause("waits")
                left -= size
        start = min(2 - len(orders), self.trials - len(snapshot.trials))
        return Plan(orders, start=max(0, start), gate_open=False)


class Lab:
    """A worker of two slots that does what it is told to."""

    def __init__(self, trials: int = 2, max_slots: int | None = None) -> None:
        self.now = 1000.0
        self.table = MemoryTable("pool", 1, now=lambda: self.now, deadline=2000.0)
        self.table.register("a", "a", 1, [], 2)
        self.planner = Planner(
            CountedTrials(), self.table, LargestFirst(trials), direction="maximize",
            worker_id="a", clock=lambda: self.now, max_slots=max_slots,
        )  # fmt: skip

    def planned(self) -> dict[int, int]:
        """The slots that each living trial is to have, once planning again changes nothing."""
        for _ in range(3):
            self.now += 1
            self.planner.tick()
        assert not self.planner.tick(), "planning again changes nothing"
        return {line.number: line.slots for line in self.table.trials() if line.alive}

    def grant(self, number: int) -> Grant:
        wanted = self.table.trials()[number].slots
        grant = self.table.acquire("a", number, self.table.free_slots("a")[:wanted])
        assert grant is not None
        return grant


def test_a_trial_is_directed_down_to_its_limit_and_others_get_the_rest() -> None:
    lab = Lab()
    assert lab.planned() == {0: 2, 1: 0}
    grant = lab.grant(0)
    lab.table.limit_slots("a", grant, 1, "its batches are whole")
    assert lab.planned() == {0: 1, 1: 1}
    assert lab.table.trials()[0].reason == "1 of 2: it cannot use more"
    lab.table.release("a", grant, "paused", ended="limit")
    assert lab.grant(0).size == lab.grant(1).size == 1
    assert lab.planned() == {0: 1, 1: 1}


def test_where_every_trial_is_limited_no_slot_is_planned_in_vain() -> None:
    lab = Lab()
    assert lab.planned() == {0: 2, 1: 0}
    grant = lab.grant(0)
    lab.table.limit_slots("a", grant, 1, "its batches are whole")
    lab.table.release("a", grant, "paused", ended="limit")
    lab.planned()
    lab.table.limit_slots("a", lab.grant(1), 1, "its batches are whole")
    assert lab.planned() == {0: 1, 1: 1}


def test_a_pin_above_the_limit_is_the_limit() -> None:
    lab = Lab()
    lab.planned()
    lab.table.limit_slots("a", lab.grant(0), 1, "its batches are whole")
    assert lab.table.pin(0, 2)
    assert lab.planned() == {0: 1, 1: 1}


def segment(
    number: int, slots: int, *, steps: float = 0.0, outcome: str | None = "resize"
) -> SegmentRow:
    return SegmentRow(number, slots, slots, 0.0, 9.0, outcome, 1.0, 1.0, 4.0, 4.0 + steps, 5.0)


def limited(number: int, slots: int | None) -> PlannedTrial:
    return PlannedTrial(
        number, 100, "failed", 1, None, "pause", None, 0, "", 0.0, None, None, False, 0,
        slot_limit=slots,
    )  # fmt: skip


def learned(
    lines: list[PlannedTrial], segments: list[SegmentRow], most: int | None = None
) -> SlotLimits:
    limits = SlotLimits(most)
    for line in lines:
        limits.take_trial(line)
    for row in segments:
        limits.take_segment(row)
    return limits


def test_two_trials_that_cannot_train_on_more_speak_for_all_if_none_ever_has() -> None:
    alone = [segment(number, 1, steps=9.0) for number in range(3)]
    vain = [segment(number, 2) for number in range(2)]
    two = [limited(0, 1), limited(1, 1), limited(2, None)]
    assert learned(two, alone + vain).max_slots == 1
    words = "all trials train on one slot only: 2 could not on more, and none has"
    assert learned(two, alone + vain).describe() == words
    assert learned(two[:1], alone + vain).max_slots is None, "one trial may be a special case"
    assert learned(two, [*alone, *vain, segment(2, 2, steps=0.1)]).max_slots is None, (
        "another one can"
    )
    tail = [segment(n, 2, steps=3.0, outcome="limit") for n in range(2)]
    assert learned(two, alone + tail).max_slots == 1, "what was trained there came to nothing"
    running = segment(1, 2, steps=3.0, outcome=None)
    assert learned(two, [*alone, tail[0], running]).max_slots is None
    assert learned(two, [*alone, tail[0], running, tail[1]]).max_slots == 1, "and ended so"
    whole = segment(2, 2, outcome="complete")
    assert learned(two, [*alone, *vain, whole]).max_slots is None, "too short to say where it was"
    assert learned(two, alone).max_slots is None, "they have said it by themselves, of themselves"
    assert (
        learned([limited(0, 1), limited(1, 2)], [*alone, segment(0, 2), segment(1, 4)]).max_slots
        == 2
    )


def test_the_studys_terms_hold_where_they_allow_less() -> None:
    rows = [segment(0, 4), segment(1, 4)]
    assert (
        learned([], rows, 3).max_slots == 3
        and "3 slots at most" in learned([], rows, 3).describe()
    )
    assert learned([limited(0, 2), limited(1, 2)], rows, 3).max_slots == 2
    assert learned([limited(0, 2), limited(1, 2)], rows, 1).max_slots == 1
    assert learned([], rows).describe() == ""


def test_further_trials_are_begun_and_kept_on_what_two_could(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lab = Lab(trials=3)
    for number in range(2):
        lab.planned()
        grant = lab.grant(number)
        assert grant.size == 2
        lab.table.limit_slots("a", grant, 1, "its batches are whole")
        lab.table.release("a", grant, "failed", ended="error")
    assert lab.planned() == {2: 1}
    warnings = [message for message in caplog.messages if "all trials" in message]
    assert len(warnings) == 1 and warnings[0].startswith(
        "From here on all trials train on one slot only"
    )
    assert lab.table.pin(2, 2) and lab.planned() == {2: 1}


def test_what_the_terms_allow_is_planned() -> None:
    assert Lab(max_slots=1).planned() == {0: 1, 1: 1}
