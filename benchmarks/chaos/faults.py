"""Random faults by a seed, sometimes several at once."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

import sqlalchemy as sa

from benchmarks.chaos.databases import Database, Postgres
from benchmarks.chaos.disk import Disk
from benchmarks.chaos.fleet import Fleet, Member
from benchmarks.chaos.worker import GRACE, TTL
from benchmarks.support.network import Proxy
from optuna_deadline.allocation.database.schema import leader, tenant, worker

T = TypeVar("T")
_SHORT = (0.2, 1.5)
LONG = (TTL + GRACE + 0.5, TTL + GRACE + 3.0)  # seconds until other workers have the slots
_STEPS = (-3600.0, -20.0, -5.0, -0.5, 0.0, 0.5, 5.0, 20.0, 3600.0)
_LOCKED = (
    "optuna_deadline_report", "optuna_deadline_slot", "optuna_deadline_trial",
    "optuna_deadline_study", "trial_intermediate_values", "trials",
)  # fmt: skip


class Faults:
    """Draws faults, carries them out, and undoes those that end.

    Args:
        fleet: The workers.
        database: Their database.
        rng: The source of all random choices.
        steps: The steps of the clock, in seconds.
    """

    def __init__(
        self,
        fleet: Fleet,
        database: Database,
        rng: random.Random,
        steps: Sequence[float] = _STEPS,
    ) -> None:
        self._steps = steps
        self.count: Counter[str] = Counter()
        self.unsaved: list[tuple[float, float]] = []  #: when the disk was full
        self._fleet = fleet
        self._database = database
        self._rng = rng
        self._undo: list[tuple[float, Callable[[], object]]] = []
        self._sick = ""
        self._engine = sa.create_engine(database.url, poolclass=sa.pool.NullPool)
        self._kinds: dict[str, tuple[int, Callable[[], object]]] = {
            "kill agent": (3, lambda: self._kill("agent")),
            "freeze agent": (3, lambda: self._freeze("agent", _SHORT)),
            "freeze agent for long": (4, lambda: self._freeze("agent", LONG)),
            "ask agent to leave": (1, lambda: self._signal("agent", signal.SIGTERM)),
            "kill rank": (3, lambda: self._kill("rank")),
            "freeze rank": (2, lambda: self._freeze("rank", LONG)),
            "kill watchdog": (3, lambda: self._kill("watchdog")),
            "freeze watchdog": (3, lambda: self._freeze("watchdog", LONG)),
            "kill fork server": (2, lambda: self._kill("fork server")),
            "freeze fork server": (2, lambda: self._freeze("fork server", LONG)),
            "freeze a whole worker": (2, self._freeze_family),
            "kill planner": (2, lambda: self._kill_holder(tenant.c.planner)),
            "freeze planner for long": (2, lambda: self._freeze_holder(tenant.c.planner)),
            "kill leader": (2, lambda: self._kill_holder(leader.c.holder)),
            "freeze leader for long": (2, lambda: self._freeze_holder(leader.c.holder)),
            "step clock": (2, self._step_clock),
            "fail a slot": (1, self._fail_slot),
        }
        self._disk = Disk(fleet.folder)
        if self._disk.own:
            self._kinds["fill the disk"] = (1, self._fill_the_disk)
        if isinstance(database, Postgres):
            server = database
            self._kinds |= {
                "terminate sessions": (4, lambda: server.terminate(0.3)),
                "restart server": (1, lambda: self._restart(server)),
                "freeze server": (1, lambda: self._freeze_server(server)),
                "take no writes": (1, lambda: self._take_no_writes(server)),
                "lock a table": (2, lambda: self._lock(server)),
                "stall one": (3, lambda: self._stall(1)),
                "cut off a host": (3, self._cut_off),
                "stall all": (1, lambda: self._stall(len(server.proxies))),
                "reset one": (2, lambda: self._rng.choice(server.proxies).reset()),
                "reset all": (1, lambda: each(Proxy.reset, server.proxies)),
                "refuse one": (2, self._refuse),
                "delay one": (2, self._delay),
            }

    def strike(self) -> str:
        """Carry out one fault; return its name."""
        names = list(self._kinds)
        name = self._rng.choices(names, [self._kinds[n][0] for n in names])[0]
        # The victim may have just died, or the server may be down.
        with suppress(ProcessLookupError, IndexError, StopIteration, sa.exc.SQLAlchemyError):
            self._kinds[name][1]()
            self.count[name] += 1
        return name

    def mend(self, everything: bool = False) -> None:
        """Undo faults that have lasted long enough."""
        now = time.monotonic()
        due = [item for item in self._undo if everything or item[0] <= now]
        self._undo = [item for item in self._undo if item not in due]
        for _, undo in sorted(due, key=lambda item: item[0]):
            try:
                undo()
            except (sa.exc.SQLAlchemyError, RuntimeError, TimeoutError):  # the server is down
                self._later(_SHORT, undo)
        if everything and self._undo:
            time.sleep(0.2)
            self.mend(everything=True)
        elif everything:
            self._database.step_clock(0.0)

    def _later(self, between: tuple[float, float], undo: Callable[[], object]) -> None:
        self._undo.append((time.monotonic() + self._rng.uniform(*between), undo))

    def _victim(self, kind: str) -> tuple[Member, int]:
        """A random worker, also a replaced one, and one of its processes."""
        everyone = [*self._fleet.members, *self._fleet.ghosts]
        member = self._rng.choice(everyone)
        return member, self._rng.choice(member.family(kind))

    def _signal(self, kind: str, number: int) -> None:
        os.kill(self._victim(kind)[1], number)

    def _kill(self, kind: str) -> None:
        self._signal(kind, signal.SIGKILL)

    def _freeze(self, kind: str, between: tuple[float, float]) -> None:
        member, pid = self._victim(kind)
        if kind == "agent":
            self._fleet.freeze(member)
        else:
            os.kill(pid, signal.SIGSTOP)
        self._later(between, lambda: self._fleet.thaw(pid))

    def _freeze_family(self) -> None:
        """Freeze agent, watchdog, fork server and ranks, as a paused container does."""
        member = self._rng.choice(self._fleet.members)
        pids = [p for k in ("watchdog", "agent", "fork server", "rank") for p in member.family(k)]
        self._rng.shuffle(pids)
        self._fleet.freeze(member)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        self._rng.shuffle(pids)
        self._later(LONG, lambda: each(self._fleet.thaw, pids))

    def _kill_holder(self, office: sa.Column[str]) -> None:
        os.kill(self._holder(office).pid, signal.SIGKILL)

    def _freeze_holder(self, office: sa.Column[str]) -> None:
        member = self._holder(office)
        pid = member.pid
        self._fleet.freeze(member)
        self._later(LONG, lambda: self._fleet.thaw(pid))

    def _holder(self, office: sa.Column[str]) -> Member:
        """The worker that plans a study or leads the pool."""
        query = sa.select(worker.c.pid).join(office.table, office == worker.c.id)
        with self._engine.connect() as connection:
            pid = self._rng.choice([row.pid for row in connection.execute(query)])
        everyone = [*self._fleet.members, *self._fleet.ghosts]
        return next(member for member in everyone if member.pid == pid)

    def _step_clock(self) -> None:
        self._database.step_clock(self._rng.choice(self._steps))

    def _restart(self, server: Postgres) -> None:
        if server.server.pid is not None:
            server.server.stop("immediate")
            self._later((0.1, 5.0), server.server.start)

    def _freeze_server(self, server: Postgres) -> None:
        server.server.pause()
        # In a thread: the next fault may wait for an answer of the server.
        threading.Timer(self._rng.uniform(0.5, LONG[1]), server.server.resume).start()
        self._later(LONG, server.server.resume)

    def _take_no_writes(self, server: Postgres) -> None:
        server.take_writes(False)
        self._later((0.5, LONG[1]), lambda: server.take_writes(True))

    def _lock(self, server: Postgres) -> None:
        """Lock a whole table, as a client does that changes its columns."""
        session = server.lock(self._rng.choice(_LOCKED))
        self._later((0.5, LONG[1]), session.close)

    def _fill_the_disk(self) -> None:
        """Fill the disk of database and checkpoints; PostgreSQL may end then."""
        began = time.monotonic()  # under load it takes seconds, in which saves fail already
        self._disk.fill()
        self._later(LONG, lambda: self._free_the_disk(began))

    def _free_the_disk(self, began: float) -> None:
        self._disk.free()
        self.unsaved.append((began, time.monotonic()))
        if isinstance(self._database, Postgres):
            self._database.server.start()

    def _fail_slot(self) -> None:
        """Let trials fail on one slot of a host; a trial that fails on two slots is at fault."""
        self._sick = self._sick or f"{self._fleet.members[0].place.host}/cpu:0"
        file = self._fleet.folder / "sick"
        file.write_text(self._sick)
        self._later(LONG, lambda: file.unlink(missing_ok=True))

    def _stall(self, number: int) -> None:
        self._hang(self._rng.sample(self._database.proxies, number), (0.5, LONG[1]))

    def _cut_off(self) -> None:
        """Cut a host's workers off the database until another host has its slots."""
        hosts = [member.place.host for member in self._fleet.members]
        cut = self._rng.choice(sorted(set(hosts)))
        lines = zip(hosts, self._database.proxies, strict=True)
        self._hang([proxy for host, proxy in lines if host == cut], LONG)

    def _hang(self, proxies: Iterable[Proxy], between: tuple[float, float]) -> None:
        for proxy in proxies:
            proxy.stall()
            self._later(between, proxy.flow)

    def _refuse(self) -> None:
        proxy = self._rng.choice(self._database.proxies)
        proxy.refuse()
        self._later((0.5, LONG[1]), proxy.flow)

    def _delay(self) -> None:
        proxy = self._rng.choice(self._database.proxies)
        proxy.delay(self._rng.uniform(0.01, 0.2))
        self._later((1.0, 5.0), proxy.flow)


def each(do: Callable[[T], object], things: Iterable[T]) -> None:
    """Undo the fault for all."""
    for thing in things:
        do(thing)
