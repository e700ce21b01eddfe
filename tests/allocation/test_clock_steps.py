"""The database's clock is set forward or back while workers hold slots."""

from __future__ import annotations

import time

import pytest
from sql_world import World

from optuna_deadline.allocation.database.clock import ClockMonitor, SteadyDeadline, uptime
from optuna_deadline.allocation.table import AllocationTable

pytestmark = pytest.mark.slow_names("postgres")


def test_who_has_just_started_does_not_reap_by_a_clock_that_it_does_not_know(world: World) -> None:
    world.time = time.time() - 1000  # as if the clock is set forward once a slot is taken
    world.tables["pool"] = AllocationTable(
        world.database, "pool", world.study_id, ttl=30, grace=15, now=lambda: world.time
    )
    world.join("a", cpus=1)
    world.grant("a")
    table = AllocationTable(world.database, "pool", world.study_id, ttl=30, grace=15)
    assert table.slots()[0].holder == "a" and table.reap() == 0
    table.database.clock._since -= 30  # as if it had watched the clock for a lease
    assert table.reap() == 0
    table.database.clock._since -= 16
    assert table.reap() == 1  # not renewed for a lease and its grace


@pytest.mark.parametrize("step", [-3600.0, -1.0, 1.0, 3600.0])
def test_a_step_is_seen_and_forgotten(step: float) -> None:
    clock, now = ClockMonitor(), uptime()
    clock.record_reading(1000.0, now - 100, now - 99.9)
    clock.record_reading(1090.0, now - 10, now - 9.9)
    assert clock.is_reliable(90, 0.2) and not clock.is_reliable(101, 0.2)
    clock.record_reading(1095.0 + step, now - 5, now - 4.9)
    assert clock.is_reliable(4, 0.2) and not clock.is_reliable(6, 0.2)


def test_a_deadline_that_another_process_has_moved_is_not_moved_again() -> None:
    clock = ClockMonitor()
    deadline = SteadyDeadline(clock)
    clock.record_reading(1000.0, 10.0, 10.0)
    assert deadline.step(1060.0) == 0.0
    clock.record_reading(4601.0, 11.0, 11.0)
    assert deadline.step(1060.0) == pytest.approx(3600.0)
    assert deadline.step(4660.0) == 0.0
    clock.record_reading(1002.0, 12.0, 12.0)
    assert deadline.step(4660.0) == pytest.approx(-3600.0)
    clock.record_reading(4601.5, 11.5, 11.5)  # of a thread that comes late
    assert deadline.step(4660.0) == pytest.approx(-3600.0)


def test_a_process_that_was_frozen_watches_the_clock_anew() -> None:
    clock, now = ClockMonitor(), uptime()
    for ago in (100, 80, 60, 40):
        clock.record_reading(1100.0 - ago, now - ago - 0.1, now - ago)
    assert clock.is_reliable(90, 0.2, unread=21)
    # set back and forward again meanwhile, for all it knows
    clock.record_reading(1100.0, now - 0.1, now)
    assert not clock.is_reliable(1, 0.2, unread=21)
    clock._since -= 90
    assert clock.is_reliable(90, 0.2, unread=21)


def test_leases_renewed_while_the_clock_was_set_back_are_not_reaped(world: World) -> None:
    world.time = time.time() - 1000  # set back, and forward again before they are renewed
    world.tables["pool"] = AllocationTable(
        world.database, "pool", world.study_id, ttl=30, grace=15, now=lambda: world.time
    )
    world.join("a", cpus=1)
    world.grant("a")
    table = AllocationTable(world.database, "pool", world.study_id, ttl=30, grace=15)
    assert table.reap() == 0
    table.database.clock._since -= 100
    table.database.clock._read -= 16  # frozen for half a lease
    assert table.reap() == 0
    table.database.clock._since -= 46
    assert table.reap() == 1


def test_a_slow_reading_is_no_step_and_vouches_for_nothing() -> None:
    clock, now = ClockMonitor(), uptime()
    clock.record_reading(1000.0, now - 100, now - 99.9)
    clock.record_reading(1091.0, now - 10, now - 0.1)
    assert not clock.is_reliable(50, 1.0)
    clock.record_reading(1100.0, now - 0.1, now)
    assert clock.is_reliable(50, 1.0)


def test_a_clock_set_back_keeps_no_dead_worker_alive(world: World) -> None:
    world.join("a", cpus=1)
    world.grant("a")
    assert world.table().elect_planner("a") is None  # "planner" rules
    world.time -= 3600
    assert world.table().workers() == []
    assert world.table().elect_planner("a") is not None
    assert world.table().reap() == 1
    world.join("b", cpus=1)
    assert [slot.device for slot in world.table().slots()] == ["cpu:0"]
