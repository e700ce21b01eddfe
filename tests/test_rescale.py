"""What the benchmark of switches makes of notes and events."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.rescale.ours import switches
from optuna_deadline.allocation.records import Event


def _note(at: float, what: str, trial: int = 0, step: int = 1, ranks: int = 1) -> dict[str, Any]:
    return {"at": at, "what": what, "trial": trial, "step": step, "ranks": ranks}


def _event(at: float, kind: str) -> Event:
    return Event(
        id=1, at=at, kind=kind, study_id=1, number=0, slot=1, fence=1, term=None, worker="w",
        detail={},
    )  # fmt: skip


def _segment(at: float, **given: Any) -> list[dict[str, Any]]:
    """A new one: the objective begins 0.4 s after the last step, its first step ends at 1 s."""
    marks = ((0.4, "objective"), (0.7, "fit"), (1.0, "step"))
    return [_note(at + after, what, **given) for after, what in marks]


EVENTS = [_event(10.1, "release"), _event(10.2, "acquire")]


def test_a_resize_is_measured_whole_and_in_parts() -> None:
    notes = [_note(9.0, "step"), _note(10.0, "step"), *_segment(10.0, ranks=2, step=3)]
    (found,) = switches(notes, EVENTS)
    assert found.change == "1 -> 2"
    assert found.seconds == pytest.approx(1.0)
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    assert found.parts["hand over"] == pytest.approx(0.1)


def test_a_new_trial_counts_from_its_grant() -> None:
    (found,) = switches([_note(10.0, "step"), *_segment(10.0, trial=1)], EVENTS)
    assert (found.change, pytest.approx(found.seconds)) == ("start", 0.8)


def test_steps_of_one_segment_are_no_switch() -> None:
    assert not list(switches([_note(10.0, "step"), _note(10.5, "step", step=2)], EVENTS))


def test_a_woken_trial_has_neither_begun_nor_been_set_up_again() -> None:
    notes = [
        _note(10.0, "step"),
        _note(10.15, "wake", trial=1),
        _note(10.3, "step", trial=1, step=9),
    ]
    events = [_event(10.05, "release"), _event(10.1, "acquire")]
    (found,) = switches(notes, events)
    assert (found.change, pytest.approx(found.seconds)) == ("wake", 0.3)
    assert found.parts == pytest.approx(
        {"save and leave": 0.05, "hand over": 0.05, "wake": 0.05, "first step": 0.15}
    )
