"""The cost of the same rows in PostgreSQL: statements, round trips, and CPU of both sides."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import sqlalchemy as sa

from benchmarks.measuring import StatementCounter
from benchmarks.scale.planning import make_planner
from benchmarks.scale.situation import POOL, STEPS, Situation, write_rows
from benchmarks.servers import server_seconds
from benchmarks.support.postgres import EmbeddedPostgres
from optuna_deadline.allocation.database.opening import connect, disconnect
from optuna_deadline.allocation.records import Grant, NewReport
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.planning.pool_leader import PoolLeader
from optuna_deadline.study import policy_choice


@dataclass(frozen=True)
class Cost:
    """The mean cost of one operation over its repetitions."""

    statements: float
    client_ms: float  #: CPU
    server_ms: float  #: CPU
    wall_ms: float


def measure(server: EmbeddedPostgres, work: Callable[[], object], seconds: float) -> Cost:
    """Repeat an operation for some seconds."""
    work()
    count, took = 0, server_seconds(server)
    with StatementCounter().listening() as counter:
        wall, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() - wall < seconds:
            work()
            count += 1
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    took = server_seconds(server) - took  # in ticks of 10 ms
    per = 1e3 / count
    return Cost(counter.count / count, cpu * per, took * per, wall * per)


class Database:
    """A pool's rows in a database of the server.

    Args:
        server: PostgreSQL.
        found: The rows.
        policy: The policy of the measured planner.
    """

    def __init__(self, server: EmbeddedPostgres, found: Situation, policy: str) -> None:
        self.url = server.create_database(f"scale_{found.size.capacity}")
        self._server, self._found, self._policy = server, found, policy
        self.database = connect(self.url)
        write_rows(found, self.database.engine)
        self._study = max(1, found.size.studies // 2)
        self._table = AllocationTable(self.database, POOL, self._study)
        self._me = found.planner_of(self._study)
        self._other = f"s{self._study}-h{found.hosts_of(self._study)[-1]}"

    def costs(self, seconds: float) -> dict[str, Cost]:
        """Every operation by name."""
        table, me = self._table, self._me
        lines = [line for line in self._found.running(self._study) if line.owner == me]
        held = self._found.held(me)
        grants = [
            Grant(line.number, line.trial_id, line.fence, (pair,), ("gpu",))
            for line, pair in zip(lines, held, strict=True)
        ]
        steps = dict.fromkeys([line.number for line in lines], STEPS)
        table.elect_planner(me)
        table.elect_leader(me)

        def report() -> None:
            grant = grants[0]
            steps[grant.number] += 1
            table.add_reports(
                me, grant, [NewReport(steps[grant.number], 0.5, 60.0 * steps[grant.number])]
            )

        def progress() -> None:
            table.set_progress(
                me, grants[0], startup=5.0, position_from=0.0, position_to=9.0, trained=540.0,
                horizon=STEPS,
            )  # fmt: skip

        works: dict[str, Callable[[], object]] = {
            "orders": lambda: table.orders(me),
            "renew": lambda: table.renew(me, held),
            "stand for planner": lambda: table.elect_planner(self._other),
            "stand for leader": lambda: table.elect_leader(self._other),
            "report": report,
            "progress": progress,
            "move": lambda: self._move(grants),
            "register": self._register,
        }
        found = {name: measure(self._server, work, seconds) for name, work in works.items()}
        return found | self._planning(seconds, report)

    def _planning(self, seconds: float, report: Callable[[], None]) -> dict[str, Cost]:
        """The operations of planner and leader; after them the plan is the policy's."""
        table, me = self._table, self._me
        policy = policy_choice.make(self._policy, {"max_resource": STEPS})
        count = 2 * self._found.size.share
        planner = make_planner(table, policy, me, count, time.monotonic)
        leader = PoolLeader(table, "even", me)
        for _ in range(20):
            planner.tick()

        def replan() -> None:
            report()
            planner.tick()

        works: dict[str, Callable[[], object]] = {
            "plan": planner.tick,
            "report and plan": replan,
            "divide": leader.tick,
        }
        return {name: measure(self._server, work, seconds) for name, work in works.items()}

    def _move(self, grants: list[Grant]) -> None:
        """One trial releases its slot and acquires it again."""
        grant = grants[-1]
        assert self._table.release(self._me, grant, "paused", ended="pause", stop=1.0)
        again = self._table.acquire(self._me, grant.number, [grant.slots[0][0]])
        assert again is not None
        grants[-1] = again

    def _register(self) -> None:
        """A worker without slots joins; each slot would add a row."""
        self._table.register("newcomer", "another host", 1, [], 0)

    def planner_memory(self) -> dict[str, float]:
        """Megabytes of a new process that is connected, has planned, and has led the pool."""
        context = multiprocessing.get_context("spawn")
        with context.Pool(1) as pool:
            trials = 2 * self._found.size.share
            given = (self.url, self._study, self._me, trials, self._policy)
            return dict(pool.apply(_plan_afresh, given))

    def drop(self) -> None:
        """Delete the rows."""
        disconnect(self.database)
        self._server.drop_database(sa.make_url(self.url).database or "")


def _plan_afresh(url: str, study: int, me: str, trials: int, policy: str) -> dict[str, float]:
    """The planner and the leader of a process that has just started."""
    table = AllocationTable(connect(url), POOL, study)
    chosen = policy_choice.make(policy, {"max_resource": STEPS})
    table.orders(me)
    sizes = {"connected": _resident()}
    planner = make_planner(table, chosen, me, trials, time.monotonic)
    for _ in range(3):
        planner.tick()
    sizes["planned"] = _resident()
    leader = PoolLeader(table, "fair", me)
    for _ in range(3):
        leader.tick()
    sizes["divided"] = _resident()
    return sizes


def _resident() -> float:
    return float(psutil.Process().memory_info().rss) / 2**20
