"""Two transitions at once on the same rows: the outcome is that of one after the other.

The first is held inside its transaction, all its statements done, while the second runs on another
connection. Then the first commits; or its client freezes, and must block nobody for more than a
second.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from sql_world import World

from benchmarks.support.postgres import PostgresServer
from optuna_deadline.allocation.database import limits
from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.limits import FROZEN_SECONDS
from optuna_deadline.allocation.database.opening import connect, disconnect
from optuna_deadline.allocation.database.transaction import Scope, Transaction
from optuna_deadline.allocation.records import Assignment, Grant, NewReport, StudyClaim
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.errors import LeaseLost
from optuna_deadline.study import agreement

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.nightly_but(r"acquire/plan-False|renew/reap-False|lend/acquire-False"),
]
Act = Callable[["Scene", AllocationTable], Any]

NOON = 1e9  # when every scene begins, so that outcomes compare
#: Seconds that the second transition gets to finish, or to begin to wait.
MOMENT = 0.15


class Held(Database):
    """Transactions that stay open after their last statement, until released."""

    def __init__(self, database: Database) -> None:
        super().__init__(database.engine)
        self.inside, self.go = threading.Event(), threading.Event()

    @contextmanager
    def begin(self, scope: Scope, name: str, queue: int | None = None) -> Iterator[Transaction]:
        """As the real one, but held before its commit."""
        with super().begin(scope, name, queue) as tx:
            yield tx
            self._hold()

    def each_alone(self, scope: Scope, name: str = "") -> AbstractContextManager[Transaction]:
        """A single statement, in a transaction, so that what it locks can be seen to be locked."""
        return self.begin(scope, name)

    def _hold(self) -> None:
        self.inside.set()
        assert self.go.wait(20)


@dataclass
class Scene:
    """Worker "a" trains trial 0 on slot 0 of two; trial 1 is wanted there too; "p" plans."""

    world: World
    slots: list[int]
    grant: Grant
    waiting: int
    term: int
    led: int

    def id(self, worker: str) -> str:
        """The worker's own in this scene."""
        return f"{self.world.study.study_name}-{worker}"

    def state(self) -> list[Any]:
        """Everything that a transition may change, whatever the rows' numbers are."""
        table = self.world.table()
        table.reap()  # what a reaper left behind for a locked row, the next one takes
        return [
            [
                (s.device, s.holder, s.number, s.fence, s.lease, s.lent_to == table.study_id)
                for s in table.slots()
            ],
            [
                (
                    t.number,
                    t.state,
                    t.owner,
                    t.fence,
                    t.mode,
                    t.slots,
                    t.reason,
                    t.value,
                    t.held,
                    t.pinned,
                )
                for t in table.trials()
            ],
            sorted((s.number, s.fence, s.outcome) for s in table.segments()),
            [(c.number, c.fence, c.step) for c in table.checkpoints()],
            [(r.number, r.step, r.value) for r in table.reports()],
            sorted((w.id, w.state, w.lease, w.drained) for w in table.workers()),
            table.orders(self.id("a")).settled,
        ]


def _acquire(scene: Scene, table: AllocationTable) -> bool:
    return table.acquire(scene.id("a"), scene.waiting, scene.slots[1:]) is not None


def _acquire_again(scene: Scene, table: AllocationTable) -> bool:
    return table.acquire(scene.id("a"), scene.grant.number, scene.slots[:1]) is not None


def _renew(scene: Scene, table: AllocationTable) -> int:
    return len(table.renew(scene.id("a"), scene.grant.slots).kept)


def _release(scene: Scene, table: AllocationTable) -> bool:
    return table.release(scene.id("a"), scene.grant, "paused", ended="pause")


def _reap(scene: Scene, table: AllocationTable) -> None:
    table.reap()  # how many it finds is no promise: it skips what is locked


def _report(scene: Scene, table: AllocationTable) -> None:
    table.add_reports(scene.id("a"), scene.grant, [NewReport(1, 0.5, 1.0)])


def _checkpoint(scene: Scene, table: AllocationTable) -> None:
    number, fence = scene.grant.number, scene.grant.fence
    table.add_checkpoint(
        scene.id("a"), scene.grant, Checkpoint(number, fence, 1, 0.5, Path("x"), 1, "x")
    )


def _plan(scene: Scene, table: AllocationTable) -> None:
    lines = [Assignment(number, "pause", None, 0, "one") for number in (1, 0)]
    table.write_plan(scene.id("p"), scene.term, lines)


def _plan_otherwise(scene: Scene, table: AllocationTable) -> None:
    lines = [Assignment(number, "run", scene.id("a"), 1, "other") for number in (0, 1)]
    table.write_plan(scene.id("p"), scene.term, lines)


def _elect(scene: Scene, table: AllocationTable) -> int | None:
    return table.elect_planner(scene.id("q"))


def _elect_own(scene: Scene, table: AllocationTable) -> int | None:
    return table.elect_planner(scene.id("a"))


def _lead_own(scene: Scene, table: AllocationTable) -> int | None:
    return table.elect_leader(scene.id("a"))


def _open(scene: Scene, table: AllocationTable) -> None:
    table.open_trial(scene.id("p"), scene.term, 9, 9)


def _conclude(scene: Scene, table: AllocationTable) -> bool:
    return table.conclude(
        scene.id("p"), scene.term, scene.waiting, "retired", "others were better"
    )


def _settle(scene: Scene, table: AllocationTable) -> None:
    table.settle(scene.id("p"), scene.term)


def _lend(scene: Scene, table: AllocationTable) -> None:
    """Both slots go to a study that is none, the free one and the one in use."""
    table.lend(scene.id("p"), scene.led, dict.fromkeys(scene.slots, 0), {})


def _lead(scene: Scene, table: AllocationTable) -> int | None:
    return table.elect_leader(scene.id("q"))


def _claim(scene: Scene, table: AllocationTable) -> None:
    table.set_claim(scene.id("p"), scene.term, StudyClaim(2, 2, 0.0, None))


def _register(me: str) -> Act:
    def act(scene: Scene, table: AllocationTable) -> list[str]:
        return [s.device for s in table.register(scene.id(me), scene.id("host"), 1, [], 1)]

    return act


def _register_again(scene: Scene, table: AllocationTable) -> list[str]:
    slots = table.register(scene.id("a"), scene.world.study.study_name, 1, [], 2)
    return [s.device for s in slots]


def _hold(scene: Scene, table: AllocationTable) -> bool:
    return table.hold(scene.waiting, True)


def _pin(scene: Scene, table: AllocationTable) -> bool:
    return table.pin(scene.grant.number, 2)


def _drain(scene: Scene, table: AllocationTable) -> int:
    return table.drain(scene.world.study.study_name, True)


def _leave(scene: Scene, table: AllocationTable) -> None:
    table.leave(scene.id("p"))


#: Two transitions, and the seconds since the last renewal: past 30 the planner's lease is over,
#: past 45 what "a" holds may be reaped.
PAIRS: dict[str, tuple[Act, Act, float]] = {
    "acquire/acquire": (_acquire, _acquire, 1),
    "acquire/plan": (_acquire, _plan, 1),
    "acquire/conclude": (_acquire, _conclude, 1),
    "acquire/settle": (_acquire, _settle, 1),
    "acquire/reap": (_acquire_again, _reap, 46),
    "acquire/renew": (_acquire, _renew, 1),
    "renew/reap": (_renew, _reap, 46),
    "renew/release": (_renew, _release, 1),
    "release/reap": (_release, _reap, 46),
    "release/plan": (_release, _plan, 1),
    "release/acquire": (_release, _acquire_again, 1),
    "checkpoint/reap": (_checkpoint, _reap, 46),
    "checkpoint/release": (_checkpoint, _release, 1),
    "checkpoint/acquire": (_checkpoint, _acquire_again, 46),
    "report/reap": (_report, _reap, 46),
    "report/report": (_report, _report, 1),
    "plan/plan": (_plan, _plan_otherwise, 1),
    "plan/elect": (_plan, _elect, 31),
    "open/elect": (_open, _elect, 31),
    "settle/elect": (_settle, _elect, 31),
    "leave/elect": (_leave, _elect, 1),
    "elect/elect": (_elect, lambda scene, table: table.elect_planner(scene.id("r")), 31),
    "renew/elect": (_renew, _elect_own, 31),
    "renew/lead": (_renew, _lead_own, 31),
    "leave/lead": (_leave, _lead, 1),
    "lend/acquire": (_lend, _acquire, 1),
    "lend/release": (_lend, _release, 1),
    "lend/plan": (_lend, _plan, 1),
    "lend/claim": (_lend, _claim, 1),
    "lend/lead": (_lend, _lead, 31),
    "lend/reap": (_lend, _reap, 46),
    "reap/reap": (_reap, _reap, 46),
    "register/register": (_register("b"), _register("c"), 1),
    "hold/acquire": (_hold, _acquire, 1),
    "hold/plan": (_hold, _plan, 1),
    "hold/conclude": (_hold, _conclude, 1),
    "pin/release": (_pin, _release, 1),
    "pin/reap": (_pin, _reap, 46),
    "drain/acquire": (_drain, _acquire, 1),
    "drain/renew": (_drain, _renew, 1),
    "drain/register": (_drain, _register_again, 1),
    "drain/reap": (_drain, _reap, 46),
}
BOTH_WAYS = [(name, turned) for name in PAIRS for turned in (False, True)]


@pytest.fixture(scope="module")
def make_scene(
    postgres: PostgresServer, postgres_template: str
) -> Iterator[Callable[[float], Scene]]:
    """Scenes that differ in nothing, each a study and a pool of its own."""
    made = f"od_scenes_{uuid.uuid4().hex[:8]}"
    url = postgres.create_database(made, postgres_template)
    database, count = connect(url), itertools.count()
    storage = optuna.storages.RDBStorage(url)

    def make(seconds: float) -> Scene:
        name = f"scene{next(count)}."
        me, planner = f"{name}-a", f"{name}-p"
        study = optuna.create_study(storage=storage, study_name=name)
        terms = agreement.fix(database, study, "1h")
        world = World(study, database, terms.study_id, terms.deadline, NOON)
        world.tables["pool"] = AllocationTable(
            database, name, terms.study_id, ttl=30, grace=15, now=lambda: world.time
        )
        table = world.table()
        slots = [s.id for s in table.register(me, name, 1, [], 2)]
        term = table.elect_planner(planner)
        assert term == 1
        for number in (0, 1):
            table.open_trial(planner, term, number, number)
        table.write_plan(planner, term, [Assignment(n, "run", me, 1, "test") for n in (0, 1)])
        grant = table.acquire(me, 0, slots[:1])
        assert grant is not None
        led = table.elect_leader(planner)
        assert led == 1
        world.time += seconds
        return Scene(world, slots, grant, 1, term, led)

    yield make
    storage.remove_session()
    storage.engine.dispose()
    disconnect(database)
    postgres.drop_database(made)


def _do(act: Act, scene: Scene, table: AllocationTable) -> Any:
    try:
        return act(scene, table)
    except LeaseLost:
        return "lease lost"


def _relative(scene: Scene, outcome: list[Any]) -> str:
    """As text in which one scene is like another."""
    return repr(outcome).replace(f"{scene.world.study.study_name}-", "")


def _serial(make: Callable[[float], Scene], acts: list[Act], seconds: float) -> str:
    scene = make(seconds)
    answers = [_do(act, scene, scene.world.table()) for act in acts]
    return _relative(scene, [answers, scene.state()])


def _second_table(table: AllocationTable) -> AllocationTable:
    held = Held(table.database)
    now = table._scope.given
    return AllocationTable(held, table.pool, table.study_id, ttl=30, grace=15, now=now)


@pytest.mark.slow
@pytest.mark.parametrize(("pair", "turned"), BOTH_WAYS)
def test_the_outcome_is_a_serial_one(
    pair: str, turned: bool, make_scene: Callable[[float], Scene]
) -> None:
    *acts, seconds = PAIRS[pair]
    first, second = reversed(acts) if turned else acts
    one = _serial(make_scene, [first, second], seconds)
    two = _serial(make_scene, [second, first], seconds)
    scene = make_scene(seconds)
    table, other = scene.world.table(), _second_table(scene.world.table())
    assert isinstance(other.database, Held)
    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(_do, first, scene, other)
        assert other.database.inside.wait(5)
        quick = threads.submit(_do, second, scene, table)
        with suppress(TimeoutError):
            _wait(quick, MOMENT)
        other.database.go.set()
        answers = [slow.result(10), quick.result(10)]
    state = scene.state()
    together = {_relative(scene, [answers, state]), _relative(scene, [answers[::-1], state])}
    assert _relative(scene, [answers, state]) == one or together & {two}


@pytest.mark.slow
@pytest.mark.parametrize(("pair", "turned"), BOTH_WAYS)
def test_a_frozen_client_blocks_nobody_for_long_and_changes_nothing(
    pair: str,
    turned: bool,
    make_scene: Callable[[float], Scene],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    *acts, seconds = PAIRS[pair]
    first, second = reversed(acts) if turned else acts
    alone = _serial(make_scene, [second], seconds)
    scene = make_scene(seconds)
    monkeypatch.setattr(limits, "FROZEN_SECONDS", FROZEN_SECONDS)  # as outside of tests
    other = _second_table(scene.world.table())
    assert isinstance(other.database, Held)
    with ThreadPoolExecutor(1) as threads:
        frozen = threads.submit(_do, first, scene, other)
        assert other.database.inside.wait(5)
        began = time.monotonic()
        answer = _do(second, scene, scene.world.table())
        waited = time.monotonic() - began
        time.sleep(max(0.0, FROZEN_SECONDS + 0.2 - waited))  # its session has ended by now
        state = scene.state()
        other.database.go.set()
        with pytest.raises(sa.exc.DBAPIError):  # it finds out when it comes back
            frozen.result(10)
    assert waited < FROZEN_SECONDS + 1.2, "the promise is a second; the rest is for a busy machine"
    assert _relative(scene, [[answer], state]) == alone


def _wait(future: Future[Any], seconds: float) -> None:
    future.result(seconds)
