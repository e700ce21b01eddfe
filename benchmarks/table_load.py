"""The allocation table under a cluster's load: 256 workers, 1,024 slots, one PostgreSQL.

Each worker is a thread with its own connections. It renews and polls as an agent does, with the
same methods, without training. Real workers are separate processes. Many threads in one process
would wait for each other instead of the table, so only a few share a process. Meanwhile trials
move from worker to worker, one at a time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from queue import Empty
from typing import Any

import psutil
import sqlalchemy as sa

from benchmarks.measuring import StatementCounter, percentiles_ms
from benchmarks.servers import server_seconds
from benchmarks.support.postgres import EmbeddedPostgres
from optuna_deadline.allocation.database import schema
from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.engine import create
from optuna_deadline.allocation.database.notify import NotificationListener
from optuna_deadline.allocation.database.opening import connect, disconnect
from optuna_deadline.allocation.records import Assignment, Grant
from optuna_deadline.allocation.table import TTL, AllocationTable

POLL, RENEW = 1.0, TTL / 6  # seconds
GANG, SLOTS = 2, 4  # slots of a trial, and of a worker
TOGETHER = 8  # workers in a process
POOL, STUDY = "pool", 1
TIMED = ("orders", "renew", "acquire", "release")
TARGETS = {"renew_p99": 50, "hand_over_p50_with_listen": 50}
#: ("ready", None), (one of TIMED, seconds), ("grant", (number, when)), ("cut", None),
#: ("lost", None), ("statements", n)
Found = tuple[str, Any]


class Worker(threading.Thread):
    """The calls of an agent to the table."""

    def __init__(self, me: str, url: str, listen: bool, found: list[Found], done: Event) -> None:
        super().__init__(daemon=True)
        self._me, self._found, self._done = me, found, done
        database = Database(create(sa.make_url(url)))
        self._table = AllocationTable(database, POOL, STUDY)
        self._woken = threading.Event()
        self._listener = (
            NotificationListener(database, POOL, me, self._woken.set) if listen else None
        )
        self._held: dict[int, Grant] = {}
        self._slots = [s.id for s in self._table.slots() if me in s.offered_by]

    def run(self) -> None:
        """Renew and poll until the end."""
        if self._listener is not None:
            self._listener.start()
        self._follow()
        self._found.append(("ready", None))
        renew = time.monotonic() + random.uniform(0, RENEW)
        poll = time.monotonic() + random.uniform(0, POLL)
        while not self._done.is_set():
            self._woken.wait(max(0.0, min(renew, poll) - time.monotonic()))
            now = time.monotonic()
            try:
                if now >= renew:
                    renew = now + RENEW
                    held = {s for g in self._held.values() for s in g.slots}
                    renewal = self._timed("renew", partial(self._table.renew, self._me, held))
                    if renewal.kept != held or renewal.offers != SLOTS:
                        self._found.append(("lost", None))
                if now >= poll or self._woken.is_set():
                    self._woken.clear()
                    poll = now + POLL
                    while self._follow():
                        pass
            except sa.exc.OperationalError:  # an agent tries again too
                self._found.append(("cut", None))
        if self._listener is not None:
            self._listener.end()

    def _timed(self, what: str, work: Callable[[], Any]) -> Any:
        began = time.monotonic()
        answer = work()
        self._found.append((what, time.monotonic() - began))
        return answer

    def _give_up(self, grant: Grant) -> None:
        if not self._table.release(self._me, grant, "paused", ended="resize"):
            self._found.append(("lost", None))

    def _follow(self) -> bool:
        """Carry out the plan; return whether something was released, to read the plan again."""
        released = False
        for line in self._timed("orders", lambda: self._table.orders(self._me)).trials:
            grant = self._held.get(line.number)
            if grant is not None and line.worker != self._me:
                self._timed("release", partial(self._give_up, grant))
                del self._held[line.number]
                released = True
            elif grant is None and line.owner is None and line.worker == self._me:
                busy = {slot for held in self._held.values() for slot, _ in held.slots}
                free = [slot for slot in self._slots if slot not in busy][:GANG]
                new = self._timed(
                    "acquire", partial(self._table.acquire, self._me, line.number, free)
                )
                if new is not None:
                    self._held[line.number] = new
                    self._found.append(("grant", (line.number, time.monotonic())))
        return released


def _process(
    names: list[str], url: str, listen: bool, results: Queue[list[Found]], done: Event
) -> None:
    found: list[Found] = []
    with StatementCounter().listening() as counter:
        workers = [Worker(name, url, listen, found, done) for name in names]
        for worker in workers:
            worker.start()
        before, sent = counter.count, 0
        while not done.wait(0.25):
            if new := found[sent:]:
                results.put(new)
                sent += len(new)
        for worker in workers:
            worker.join(5)
        results.put([*found[sent:], ("statements", counter.count - before)])


def prepare(url: str, workers: int) -> list[str]:
    """A study with one trial for each worker; returns the workers' names."""
    database = connect(url)
    with database.engine.begin() as connection:
        connection.execute(
            sa.insert(schema.study).values(
                study_id=STUDY, name="load", direction="minimize", started=0.0, deadline=9e9,
                policy="hypersched", parameters={},
            )
        )  # fmt: skip
    table = AllocationTable(database, POOL, STUDY)
    names = [f"worker-{index}" for index in range(workers)]
    for index, name in enumerate(names):
        devices = [f"gpu:{slot}" for slot in range(SLOTS)]
        table.register(name, f"host-{index}", 1, devices, 0)
    term = table.elect_planner("planner")
    assert term is not None
    for number in range(workers):
        table.open_trial("planner", term, number, number)
    return names


def _batches(names: list[str]) -> list[list[str]]:
    return [names[at : at + TOGETHER] for at in range(0, len(names), TOGETHER)]


def measure(
    server: EmbeddedPostgres, database: str, workers: int, seconds: float, listen: bool
) -> dict[str, Any]:
    """The figures of one situation."""
    url = server.create_database(database)
    names = prepare(url, workers)
    table = AllocationTable(connect(url), POOL, STUDY)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["optuna_deadline.allocation.table"])
    results: Queue[list[Found]] = context.Queue()
    done = context.Event()
    processes = [
        # Daemons, so that an error here ends the benchmark without a wait for them.
        context.Process(target=_process, args=(some, url, listen, results, done), daemon=True)
        for some in _batches(names)
    ]
    for process in processes:
        process.start()
    times: dict[str, list[float]] = {name: [] for name in TIMED}
    moves: list[float] = []
    counts = Counter[str]()
    pending: dict[int, float] = {}

    def take(patience: float) -> None:
        with suppress(Empty):
            for kind, what in results.get(timeout=patience):
                if kind in times:
                    times[kind].append(what)
                elif kind != "grant":
                    counts[kind] += what or 1
                elif what[0] in pending:
                    moves.append(what[1] - pending.pop(what[0]))

    _wait(take, lambda: counts["ready"] == workers)
    running = 0
    for some in _batches(names):  # a start of the whole cluster at once is not its usual load
        term = table.elect_planner("planner")
        assert term is not None
        first, running = running, running + len(some)
        lines = [Assignment(first + n, "run", name, GANG, "start") for n, name in enumerate(some)]
        table.write_plan("planner", term, lines)
        _wait(take, partial(_all_run, table, running))
    for measured in times.values():
        measured.clear()
    counts.clear()
    before, began = server_seconds(server), time.monotonic()
    next_move, chance = began, random.Random(1)
    places = dict(enumerate(names))
    while time.monotonic() - began < seconds:
        if time.monotonic() >= next_move:
            next_move += 0.5
            term = table.elect_planner("planner")
            assert term is not None
            number, target = _draw(chance, places)
            places[number] = target
            pending[number] = time.monotonic()
            table.write_plan("planner", term, [Assignment(number, "run", target, GANG, "moves")])
        take(max(0.0, min(0.05, next_move - time.monotonic())))
    wall, cpu = time.monotonic() - began, server_seconds(server) - before
    connected = _connections(table)
    done.set()
    end = time.monotonic() + 20
    while any(process.is_alive() for process in processes) and time.monotonic() < end:
        take(0.1)
    for process in processes:
        process.kill()
    disconnect(table.database)
    server.drop_database(database)
    return {
        "listen": listen,
        "workers": workers,
        "slots": workers * SLOTS,
        "seconds": round(wall, 1),
        "statements_per_s": round(counts["statements"] / wall),
        "cut": counts["cut"],
        "lost": counts["lost"],
        "connections": connected,
        **{f"{name}_ms": percentiles_ms(measured) for name, measured in times.items()},
        "hand_over_ms": percentiles_ms(moves),
        "hand_overs": len(moves),
        "server_cpu": round(cpu / wall, 3),
        "load_average": round(psutil.getloadavg()[0], 1),
    }


def _wait(take: Callable[[float], None], reached: Callable[[], bool]) -> None:
    """Take messages until a condition holds."""
    end = time.monotonic() + 180
    while not reached():
        if time.monotonic() > end:
            raise TimeoutError("The workers did not get their trials.")
        take(0.2)


def _all_run(table: AllocationTable, many: int) -> bool:
    return sum(trial.owner is not None for trial in table.trials()) >= many


def _draw(chance: random.Random, places: dict[int, str]) -> tuple[int, str]:
    """A trial, and a worker with room for it."""
    full = [place for place in places.values() if list(places.values()).count(place) > 1]
    number = chance.choice(list(places))
    room = sorted(set(f"worker-{i}" for i in range(len(places))) - {*full, places[number]})
    return number, chance.choice(room)


def _connections(table: AllocationTable) -> int:
    """The number of connections of the database."""
    count = sa.text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
    with table.database.engine.connect() as connection:
        return int(connection.execute(count).scalar_one())


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure with LISTEN and with polling only, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--workers", type=int, nargs="+", default=[256])
    parser.add_argument("--quick", action="store_true", help="10 s each")
    parser.add_argument("--json", help="file for the figures")
    given = parser.parse_args(arguments)
    seconds = 10.0 if given.quick else given.seconds
    rows = []
    sessions = f"max_connections={max(700, 3 * max(given.workers))}"
    with EmbeddedPostgres(durable=True, settings=(sessions,)) as server:
        for workers in given.workers:
            for listen in (True, False):
                name = f"load_{workers}_{int(listen)}"
                row = measure(server, name, workers, seconds, listen)
                rows.append(row)
                print(json.dumps(row), flush=True)
    if given.json:
        with open(given.json, "w") as file:
            json.dump({"rows": rows, "targets_ms": TARGETS}, file)


if __name__ == "__main__":
    main()
