"""A slot that fails is out of use for a while; its trials train elsewhere and are not failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from by_hand import Hand, faked

from optuna_deadline.allocation.records import Assignment
from optuna_deadline.rank.messages import Advanced, Left, Limited, Pruned, Raised, Returned
from optuna_deadline.worker.devices import Offer
from optuna_deadline.worker.slot_health import FIRST_PAUSE

LOST = ("RuntimeError: CUDA error: unspecified launch failure", "Traceback")
BUG = ("KeyError: 'width'", "Traceback")


@pytest.fixture
def hand(tmp_path: Path) -> Iterator[Hand]:
    with faked() as (clock, _):
        yield Hand(clock, tmp_path, deadline=100_000.0)


def _train(hand: Hand, number: int, position: float = 1.0) -> None:
    """A trial trains a step."""
    hand.say(number, Advanced(0.0, position, 1.0))
    hand.turns(2)


def _again(hand: Hand, number: int) -> None:
    hand.plan(number)
    hand.turns(2)


def _fail(hand: Hand, number: int, error: tuple[str, str] = LOST) -> tuple[str, str | None]:
    hand.end(number, Raised(*error))
    hand.turns(2)
    return hand.state(number)


def _offered(hand: Hand) -> list[str]:
    return [slot.device for slot in hand.table.slots() if slot.offered_by]


def test_an_error_of_the_device_fails_no_trial_and_takes_the_slot_out_of_use(
    hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    """Also in the middle of a training."""
    good, bad = hand.started(), hand.started()
    _train(hand, good)
    _train(hand, bad, 20.0)
    device = hand.table.slots()[1].device
    assert _fail(hand, bad) == ("paused", "slot")
    assert _offered(hand) == ["cpu:0"] and device == "cpu:1"
    assert any("cpu:1 is out of use for 1 min" in line.getMessage() for line in caplog.records)
    _again(hand, bad)
    assert hand.state(bad) == ("paused", "slot"), "there is no free slot"
    hand.end(good, Returned(0.5))
    hand.turns(2)
    _again(hand, bad)
    _train(hand, bad, 21.0)
    assert hand.state(bad) == ("running", None)
    [row] = [row for row in hand.table.trials() if row.number == bad]
    assert row.failures == 0
    [event] = [event for event in hand.table.events() if event.kind == "device"]
    assert event.detail["device"] == "cpu:1" and "CUDA error" in str(event.detail["reason"])


def test_a_slot_on_which_trials_fail_at_their_start_costs_one_new_trial(hand: Hand) -> None:
    good, first, second = hand.started(), hand.started(), hand.open()
    _train(hand, good)
    assert _fail(hand, first, BUG) == ("failed", "error"), "it may be the trial"
    _again(hand, second)
    assert _fail(hand, second, BUG) == ("paused", "slot") and _offered(hand) == ["cpu:0"]


@pytest.mark.parametrize("wrong", [("suggest_float", "x", 1.0, 0.0), ("set_user_attr",)])
def test_an_error_that_the_worker_answered_says_nothing_of_a_slot(
    hand: Hand, wrong: tuple[Any, ...]
) -> None:
    """Such as one of the sampler."""
    good, first, second = hand.started(), hand.started(), hand.open()
    _train(hand, good)
    for number in (first, second):
        _again(hand, number)
        error = hand.ask(number, *wrong)
        assert isinstance(error, Exception)
        assert _fail(hand, number, (f"{error}", "Traceback")) == ("failed", "error")
    assert len(_offered(hand)) == 2


def test_a_trial_that_has_trained_elsewhere_is_not_failed_at_its_resume(hand: Hand) -> None:
    good, other = hand.started(), hand.started()
    _train(hand, good)
    _train(hand, other)
    hand.plan(other, "pause")
    hand.turn()
    hand.end(other, Left())
    hand.turns(2)
    _again(hand, other)
    assert _fail(hand, other, BUG) == ("running", None), "it resumes at once"
    assert hand.outcomes(other) == ["pause", "slot", None] and len(_offered(hand)) == 2
    assert _fail(hand, other, BUG) == ("paused", "slot") and _offered(hand) == ["cpu:0"]


@pytest.mark.parametrize(("error", "tries"), [(LOST, 3), (BUG, 1)])
def test_if_nothing_trains_elsewhere_the_objective_is_at_fault(
    hand: Hand, error: tuple[str, str], tries: int
) -> None:
    """An error of a device counts as a death, and its slot is out of use for some seconds."""
    for number in (hand.started(), hand.started(), hand.open(), hand.open()):
        _again(hand, number)
        for _ in range(tries - 1):
            _fail(hand, number, error)
            assert len(_offered(hand)) == 1
            hand.turns(6)
            assert hand.state(number) == ("running", None)
        assert _fail(hand, number, error) == ("failed", "died" if tries > 1 else "error")
        hand.turns(6)
    assert len(_offered(hand)) == 2


def test_a_trial_that_leaves_before_its_first_step_says_nothing_of_its_slot(hand: Hand) -> None:
    good, other = hand.started(), hand.started()
    _train(hand, good)
    for end in (Left(), Pruned(), Returned(0.5)):
        hand.say(other, Limited(1, "test"))
        hand.plan(other, "pause")
        hand.turn()
        hand.end(other, end)
        hand.turns(2)
        other = hand.started()
    assert not any(row.outcome == "slot" for row in hand.table.segments())
    assert _fail(hand, other, BUG) == ("failed", "error") and len(_offered(hand)) == 2


def test_a_trial_that_fails_on_a_second_slot_is_at_fault(hand: Hand) -> None:
    good, bad = hand.started(), hand.started()
    _train(hand, good)
    assert _fail(hand, bad) == ("paused", "slot")
    hand.plan(good, "pause")
    hand.turn()
    hand.end(good, Left())
    hand.turns(2)
    _again(hand, bad)
    assert _fail(hand, bad, BUG) == ("failed", "error")
    hand.turn()
    assert len(_offered(hand)) == 2, "the first slot is tried again at once"


@pytest.mark.parametrize(("trains", "step"), [(True, 0.0), (False, 0.0), (True, 3600.0)])
def test_the_slot_that_a_former_worker_blamed_is_no_second_one(
    tmp_path: Path, trains: bool, step: float
) -> None:
    """The one that follows it knows nothing of the slot.

    Also if nothing trains elsewhere, or if the database's clock is set meanwhile.
    """
    with faked() as (clock, _), ExitStack() as opened:

        def joined(gpu: int, of: Hand | None = None) -> Hand:
            folder, offer = tmp_path / f"{of is None}", Offer((gpu,), 0)
            hand = Hand(clock, folder, of=of, deadline=100_000.0, offer=offer)
            return opened.enter_context(closing(hand))

        hand = joined(0)
        if trains:
            _train(hand, hand.started())
        term, bad = hand.term or 0, hand.open()
        for turn in range(3):
            former = joined(1, of=hand)
            again = Assignment(bad, "run", former.agent.id, 1, "test", ())
            hand.table.write_plan(hand.agent.id, term, [again])
            former.look()
            former.turns(2)
            expected = ("paused", "slot" if trains or turn else "died")
            assert _fail(former, bad) == expected and _offered(hand) == ["gpu:0"]
            hand.table.leave(former.agent.id)
            clock.ahead += step
            if step:
                seen = hand.table.orders(hand.agent.id).end
                assert hand.table.follow_clock(hand.agent.id, term, step, seen)
            hand.reconciler._renew()


def test_it_is_tried_again_after_growing_pauses_until_a_trial_trains_on_it(hand: Hand) -> None:
    good, bad = hand.started(), hand.started()
    _train(hand, good)
    waits = FIRST_PAUSE
    for _ in range(3):
        assert _fail(hand, bad) == ("paused", "slot") and len(_offered(hand)) == 1
        hand.turns(int(waits) - 5)
        assert len(_offered(hand)) == 1
        hand.turns(8)
        assert len(_offered(hand)) == 2
        waits *= 2
        _again(hand, bad)
    _train(hand, bad)
    hand.end(bad, Pruned())
    hand.turns(2)
    third = hand.started()
    assert _fail(hand, third) == ("paused", "slot")
    hand.turns(int(FIRST_PAUSE) + 3)
    assert len(_offered(hand)) == 2


def test_a_worker_that_offers_its_slots_again_leaves_out_those_that_fail(hand: Hand) -> None:
    good, bad = hand.started(), hand.started()
    _train(hand, good)
    _fail(hand, bad)
    hand.turns(10)
    assert _offered(hand) == ["cpu:0"], "renewals know that it is out of use"
    assert hand.reconciler._membership.check_offers(0)
    hand.reconciler._slot_health.note_registration()
    hand.turn()
    assert _offered(hand) == ["cpu:0"]
