"""The time of a study's slots is divided without a rest."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from histories import Recipe, paid, recipes
from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.history.series import available_slots, integral
from optuna_deadline.history.slot_usage import SlotUsage, slot_usage


@given(st.one_of(recipes, paid))
def test_the_parts_are_the_time_of_all_slots(recipe: Recipe) -> None:
    history = recipe.make()
    found = slot_usage(history)
    had = integral(available_slots(history), history.started, history.end)
    assert min(asdict(found).values()) >= 0.0
    assert found.total == pytest.approx(had, rel=0.01, abs=0.5)


@given(recipes, st.floats(0.0, 100.0), st.floats(0.0, 100.0))
def test_validations_and_waits_are_a_part_of_the_training(
    recipe: Recipe, validated: float, waited: float
) -> None:
    """Each as long as it was, but no longer than its segment trained."""
    history = recipe.make()
    before = slot_usage(history)
    rows = [row._replace(validated=validated, waited=waited) for row in history.segments]
    after = slot_usage(replace(history, segments=rows))
    apart = after.validating + after.waiting
    assert after.training + apart == pytest.approx(before.training)
    assert (after.starting, after.stopping) == (before.starting, before.stopping)
    assert 0.0 <= apart <= (validated + waited) * sum(row.slots for row in rows) * (1 + 1e-9)


def test_it_is_written_by_size_with_its_total() -> None:
    words = "75 % training, 20 % starting, 5 % idle of 200 slot-seconds"
    assert str(SlotUsage(starting=40.0, training=150.0, idle=10.0)) == words
    lost = f"{words}; 2 segments without a step"
    assert str(SlotUsage(starting=40.0, training=150.0, idle=10.0, stepless=2)) == lost
