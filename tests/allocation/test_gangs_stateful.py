"""Gangs over several workers, whatever happens: whole or not there, and nothing is left."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from allocation.suite.world import GRACE, TTL, AllocationWorld, assert_legal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stores import memory_world, sql_world

from optuna_deadline.allocation.records import Assignment, Grant, Rendezvous
from optuna_deadline.allocation.table import AllocationTable

WORKERS, SLOTS, TRIALS = "abc", 2, 2
MEETING = Rendezvous("10.0.0.1", 1, 2, "key")
_pools = itertools.count()

Move = tuple[str, int, int, int]
KINDS = (
    "plan", "acquire", "acquire", "lost grant", "meet", "release", "give back", "renew", "renew",
    "wait", "reap", "drain", "die",
)  # fmt: skip
MOVES = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 2), st.integers(0, 2), st.integers(1, 2)),
    max_size=40,
)


class Crews:
    """Three workers of two slots each, which give each other parts."""

    def __init__(self, world: AllocationWorld) -> None:
        self.world, name = world, f"crews-{next(_pools)}"
        self.table: AllocationTable = world.table(name, name)
        self.names = [f"{name}-{worker}" for worker in WORKERS]
        self.dead: set[str] = set()
        for me in self.names:
            self.table.register(me, name, 1, [], SLOTS)
        term = self.table.elect_planner("planner")
        assert term is not None
        self.term = term
        for number in range(TRIALS):
            self.table.open_trial("planner", term, number, 100 + number)
        self.grants: dict[int, tuple[str, Grant]] = {}
        self.met: set[tuple[int, int]] = set()

    def make(self, move: Move) -> None:
        kind, one, other, size = move
        getattr(self, kind.replace(" ", "_"))(self.names[one], self.names[other], size)
        self.check()

    def plan(self, me: str, other: str, size: int) -> None:
        term = self.table.elect_planner("planner")
        assert term is not None
        for number in range(TRIALS):
            others = ((other, size),) if other != me else ()
            slots = size + sum(count for _, count in others)
            line = Assignment(number, "run", me, slots, "test", others)
            self.table.write_plan("planner", term, [line])

    def acquire(self, me: str, other: str, size: int, heard: bool = True) -> None:
        if me in self.dead:
            return
        for line in self.table.orders(me).trials:
            if line.worker != me or line.owner is not None:
                continue
            own = line.slots - sum(count for _, count in line.others)
            theirs = {name: self.table.free_slots(name)[:count] for name, count in line.others}
            before = {row.id: row.holder for row in self.table.slots()}
            grant = self.table.acquire(me, line.number, self.table.free_slots(me)[:own], theirs)
            taken = [row for row in self.table.slots() if before[row.id] != row.holder]
            assert len(taken) == (0 if grant is None else line.slots)
            if grant is not None:
                assert sorted(row.holder or "" for row in taken) == sorted(
                    [me] * own + [name for name, count in line.others for _ in range(count)]
                )
            if grant is not None and heard:
                self.grants[line.number] = me, grant

    def lost_grant(self, me: str, other: str, size: int) -> None:
        """It is granted and does not hear of it; it finds out by its orders."""
        self.acquire(me, other, size, heard=False)
        for line in self.table.orders(me).trials:
            mine = self.grants.get(line.number)
            if line.owner == me and (mine is None or mine[1].fence != line.fence):
                assert self.table.cancel_grant(me, line.number, line.fence)
                key = line.number, line.fence
                assert key not in {
                    (hand.number, hand.fence) for hand in self.table.memberships(me)
                }

    def meet(self, me: str, other: str, size: int) -> None:
        for number, (owner, grant) in self.grants.items():
            line = self.table.trials()[number]
            if owner == me and (line.owner, line.fence) == (me, grant.fence):
                self.table.publish_rendezvous(me, grant, MEETING)
                self.met.add((number, grant.fence))

    def release(self, me: str, other: str, size: int) -> None:
        for number, (owner, grant) in list(self.grants.items()):
            if owner == me:
                self.table.release(me, grant, "paused", ended="pause")
                del self.grants[number]

    def give_back(self, me: str, other: str, size: int) -> None:
        for hand in self.table.memberships(me):
            if hand.part.worker == me and me not in self.dead and not hand.active:
                assert self.table.release_part(me, hand.number, hand.fence)

    def renew(self, me: str, other: str, size: int) -> None:
        if me not in self.dead:
            mine = [grant.slots for owner, grant in self.grants.values() if owner == me]
            mine += [h.part.slots for h in self.table.memberships(me) if h.part.worker == me]
            self.table.renew(me, [pair for pairs in mine for pair in pairs])

    def wait(self, me: str, other: str, size: int) -> None:
        self.world.time += size * TTL / 2

    def reap(self, me: str, other: str, size: int) -> None:
        self.table.reap()

    def drain(self, me: str, other: str, size: int) -> None:
        self.table.drain(self.names[0].rpartition("-")[0], size == 1)

    def die(self, me: str, other: str, size: int) -> None:
        self.dead.add(me)

    def check(self) -> None:
        """Each held slot is of a trial's owner or of a part, and each part has all of its own."""
        rows = {row.id: row for row in self.table.slots()}
        lines = {line.number: line for line in self.table.trials()}
        hands = {h.part.worker: h for name in self.names for h in self.table.memberships(name)}
        given: dict[int, str] = {}
        for name in self.names:
            for hand in [
                hand for hand in self.table.memberships(name) if hand.part.worker == name
            ]:
                for slot, fence in hand.part.slots:
                    assert slot not in given, "two parts have one slot"
                    given[slot] = name
                    assert (rows[slot].holder, rows[slot].fence) == (name, fence)
        for slot, row in rows.items():
            if row.holder is not None and slot not in given:
                assert row.number is not None and lines[row.number].owner == row.holder, hands
        assert_legal(self.table.events())

    def end(self) -> None:
        """All workers are silent from now on."""
        self.world.time += TTL + GRACE + 1
        self.table.reap()
        assert all(row.holder is None for row in self.table.slots())
        assert all(line.owner is None for line in self.table.trials())
        assert all(self.table.memberships(name) == [] for name in self.names)
        assert_legal(self.table.events())


def _sqlite(folder: Path) -> AllocationWorld:
    return sql_world(f"sqlite:///{folder / 'table.db'}")


@pytest.mark.parametrize("make", [lambda _: memory_world(), _sqlite], ids=["memory", "sqlite"])
def test_no_part_of_a_gang_is_held_alone(
    make: Callable[[Path], AllocationWorld], tmp_path: Path
) -> None:
    world = make(tmp_path)
    examples = settings().max_examples * (1 if make is _sqlite else 3)

    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(MOVES)
    def moves(found: list[Move]) -> None:
        world.time = 1_000_000.0
        world.deadline = 1_000_000.0 + 3600 * 24
        crews = Crews(world)
        for move in found:
            crews.make(move)
        crews.end()

    moves()
