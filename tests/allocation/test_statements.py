"""What each transition costs at a database far away: its statements on PostgreSQL.

BEGIN and COMMIT count. A transition may take fewer; one that takes more needs a reason.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stores import empty, sql_world

from optuna_deadline.allocation.database.access import Database, listening
from optuna_deadline.allocation.database.engine import autocommit
from optuna_deadline.allocation.database.opening import connect
from optuna_deadline.allocation.database.transaction import Scope, Transaction
from optuna_deadline.allocation.records import Assignment, NewReport, StudyClaim
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.files import Checkpoint

pytestmark = pytest.mark.postgres

MOST = {
    "register": 24, "leave": 9, "elect_planner": 7, "elect_leader": 6, "open_trial": 5,
    "write_plan": 8, "acquire": 9, "renew": 1, "add_reports": 1, "add_checkpoint": 6,
    "set_progress": 1, "limit_slots": 7, "hold": 6, "pin": 6, "set_claim": 4, "release": 8,
    "cancel_grant": 12, "conclude": 5, "retire": 5, "mark_ends_reported": 3,
    "drop_checkpoints": 3, "follow_clock": 7, "set_gate": 5, "resize_pool": 8, "set_price": 8,
    "set_budget": 9,
    "lend": 10, "set_in_use": 8, "drain": 9, "settle": 7, "fold": 7, "reap": 5, "reap_ended": 13,
    "orders": 1, "memberships": 1, "free_slots": 1, "trials": 1, "unreported_trials": 1,
    "segments": 1, "reports": 1, "checkpoints": 1, "events": 1, "workers": 1, "slots": 3,
    "roster": 1, "tenants": 1,
}  # fmt: skip


def test_no_transition_takes_more_statements(table_only_url: str) -> None:
    empty(table_only_url)
    world = sql_world(table_only_url)
    took: dict[str, int] = {}

    class Counted:
        """The table, whose calls are counted."""

        def __getattr__(self, name: str) -> Callable[..., Any]:
            def call(*args: Any, **options: Any) -> Any:
                heard: list[str] = []
                with listening(lambda sql, *_: heard.append(sql)):
                    found = getattr(world.table(), name)(*args, **options)
                took[name] = max(took.get(name, 0), len(heard))
                return found

            return call

    table: Any = Counted()
    world.table().make_pool()
    slots = [slot.id for slot in table.register("a", "host", 1, [], 2)]
    world.table().register("z", "host", 1, [], 1)
    table.leave("z")
    term, led = table.elect_planner("a"), table.elect_leader("a")
    for number in range(3):
        table.open_trial("a", term, number, 100 + number)
    table.write_plan("a", term, [Assignment(n, "run", "a", 1, "test") for n in (0, 1)])
    grant = table.acquire("a", 0, slots[:1])
    table.renew("a", grant.slots)
    table.add_reports("a", grant, [NewReport(step, 0.5, 1.0) for step in range(3)])
    saved = Checkpoint(0, 1, 1, 0.5, Path("x"), 1, "x")
    table.add_checkpoint("a", grant, saved, reports=[NewReport(4, 0.5, 1.0)])
    table.set_progress("a", grant, startup=1, position_from=0, position_to=1, trained=1, horizon=9)
    table.limit_slots("a", grant, 3, "test")
    table.hold(0, True)
    table.pin(0, 2)
    table.set_claim("a", term, StudyClaim(1, 2, 3.0, 4.0))
    table.release("a", grant, "paused", ended="pause")
    lost = table.acquire("a", 1, slots[:1])
    table.cancel_grant("a", 1, lost.fence)
    table.conclude("a", term, 0, "retired", "test")
    table.retire("a", term, {1: "one", 2: "another"})
    table.mark_ends_reported(0, 1, 2)
    table.drop_checkpoints(Path("x"))
    table.follow_clock("a", term, 0.0, world.deadline)
    table.set_gate("a", term, False)
    table.resize_pool("a", term, 2, world.time + 60)
    table.set_price("kind", 1.0, 1, world.time + 9, (2, world.time + 60))
    ends = world.table().orders("a").funds_end
    table.set_budget({"amount": 9.0}, world.time + 9, (2, ends))
    table.lend("a", led, {slots[0]: world.table().study_id}, {})
    table.set_in_use("a", slots[0], False, "test")
    table.drain("host", True)
    for name in ("orders", "memberships", "free_slots"):
        getattr(table, name)("a")
    for name in list(MOST)[list(MOST).index("trials") :]:
        getattr(table, name)()
    table.settle("a", term)
    table.fold()
    table.reap()
    table.reap_ended(["a"])
    assert took.keys() == MOST.keys()
    assert {name: count for name, count in took.items() if count > MOST[name]} == {}


class Slow(Database):
    """A server that takes long to look for orphans: until the test frees a lock."""

    lock = 0x5_10_3

    @contextmanager
    def begin(self, scope: Scope, name: str, queue: int | None = None) -> Iterator[Transaction]:
        """As the real one, with the query slowed."""
        waits = f"(SELECT pg_advisory_xact_lock({self.lock}) OFFSET 0) AS slow CROSS JOIN "
        with super().begin(scope, name, queue) as tx:
            run = tx._run
            tx._run = lambda sql, params: run(
                sql.replace(
                    "FROM optuna_deadline_trial t", f"FROM {waits} optuna_deadline_trial t"
                ),
                params,
            )
            yield tx


@pytest.mark.slow
def test_a_slow_reaper_does_not_take_a_trial_that_was_granted_meanwhile(
    table_only_url: str,
) -> None:
    """It has seen the trial without slots; since then, a live worker has been granted it."""
    empty(table_only_url)
    world = sql_world(table_only_url)
    for name in "ab":
        world.join(name, cpus=1, host=name)
    grant = world.grant("a")
    world.time += 46
    world.table().renew("b", [])
    database, table = connect(table_only_url), world.table()
    dead = next(slot for slot in table.slots() if slot.holder == "a")
    with table._tx() as tx:  # another reaper is between its two statements
        table._free_dead(tx, [replace(dead)])
    slow = AllocationTable(Slow(database.engine), "pool", table.study_id, now=lambda: world.time)
    waiting = f"SELECT count(*) FROM pg_locks WHERE objid = {Slow.lock} AND NOT granted"
    reaper = threading.Thread(target=slow.reap)
    with database.engine.connect() as holder, autocommit(database.engine) as looker:
        holder.exec_driver_sql(f"SELECT pg_advisory_lock({Slow.lock})")
        reaper.start()
        while not looker.exec_driver_sql(waiting).scalar():
            pass
        with table._tx() as tx:
            table._release_orphans(tx, "true")
        number = world.plan("b", number=grant.number)
        again = table.acquire("b", number, table.free_slots("b"))
        assert again is not None
        holder.exec_driver_sql(f"SELECT pg_advisory_unlock({Slow.lock})")
        reaper.join()
    assert (table.trials()[0].owner, table.trials()[0].state) == ("b", "running")
    table.add_reports("b", again, [NewReport(1, 0.5, 1.0)])
