"""A worker that a test drives by hand: no process, thread or waiting.

Its ranks are pipes whose other ends the test holds, its table is in memory, and time moves only
when the test says so.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any
from unittest.mock import patch

import optuna
import sqlalchemy as sa

from optuna_deadline.allocation.records import Assignment, OtherWorkers
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.directives import Directive
from optuna_deadline.rank.channel import channel_pair
from optuna_deadline.rank.messages import Answered, Directed, End, Message, Question, Trusted
from optuna_deadline.worker import agent as agents
from optuna_deadline.worker import segment
from optuna_deadline.worker.agent import Agent
from optuna_deadline.worker.devices import Offer
from optuna_deadline.worker.reconciler import WorkerSettings
from optuna_deadline.worker.segment import Gang

#: What a worker writes to the table.
WRITES = (
    "acquire", "release", "cancel_grant", "add_reports", "add_checkpoint", "set_progress",
    "limit_slots", "release_part", "publish_rendezvous", "leave", "renew",
)  # fmt: skip
DEADLINE = 1030.0  # of the table, which begins at 1000
_PIDS = itertools.count(4_000_000)


class FakeForkServer:
    """Forks nothing: the test holds the other end of each rank's pipe."""

    def __init__(self, worker: str | None = None) -> None:
        self.worker = worker or str(uuid.uuid4())
        self.control, self.outgoing = Pipe()
        self.ready = self.alive = True
        self.answers = True  #: whether it says that it forked
        self.ranks: dict[tuple[int, int, int], Any] = {}
        self.pids: dict[tuple[int, int, int], int] = {}

    def poll_ready(self) -> bool:
        return True

    def fork(self, key: tuple[int, int, int], spec: Any) -> Any:
        ours, self.ranks[key] = channel_pair()
        if self.answers:
            self.pids[key] = next(_PIDS)
            self.outgoing.send(("forked", key, self.pids[key]))
        return ours

    def replacement(self) -> FakeForkServer:
        return FakeForkServer(self.worker)

    def close(self) -> None:
        """The kernel closes the pipes of ranks that were never forked."""
        self.alive = False
        for key in self.ranks.keys() - self.pids.keys():
            self.ranks[key].close()


class FakeWatchdog:
    def __init__(self, _: str) -> None:
        self.until = 0.0

    def guard(self, pid: int) -> None: ...
    def forget(self, pid: int) -> None: ...
    def check(self) -> bool:
        return True

    def close(self) -> None: ...
    def trust(self, until: float) -> None:
        self.until = until


class Clock:
    """The monotonic clock of the process and the clock of the table."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.ahead = 0.0  #: by how much the clock of the table was set forward

    def __call__(self) -> float:
        self.now += 1e-6  # or a wait for a moment that never comes would not end
        return self.now


@contextmanager
def faked() -> Iterator[tuple[Clock, list[int]]]:
    """Replace processes and time; yields the clock, and the process ids that are killed."""
    clock, killed = Clock(), []
    with (
        patch.object(agents, "Watchdog", FakeWatchdog),
        patch.object(segment, "kill_rank", killed.append),
        patch.object(time, "monotonic", clock),
        patch.object(time, "sleep", lambda seconds: None),
    ):
        yield clock, killed


class Hand:
    """Moves one worker, and reads what came of it."""

    def __init__(self, clock: Clock, folder: Path, of: Hand | None = None, **options: Any) -> None:
        self.clock = clock
        sampler = options.pop("sampler", None)
        self.study = optuna.create_study(sampler=sampler) if of is None else of.study
        self.table = MemoryTable(
            "pool", 0, now=lambda: clock.now + clock.ahead,
            deadline=options.pop("deadline", DEADLINE),
            database=None if of is None else of.table.database,
        )  # fmt: skip
        self.writes: list[str] = []  #: what was written, the release with its reason
        self.away = False  #: whether the database does not answer
        self.lost_answers = 0  #: of so many grants the answer is lost
        for name in WRITES:
            setattr(self.table, name, self._recorded(name, getattr(self.table, name)))
        offer = options.pop("offer", Offer((), options.pop("cpus", 2)))
        limit = options.pop("time_limit", None)
        settings = WorkerSettings(offer=offer, folder=folder, **options)
        self.agent = Agent(self.study, self.table, FakeForkServer(), settings, limit)  # type: ignore[arg-type]
        self.reconciler = self.agent._reconciler
        self.agent.register()
        self.term = self.table.elect_planner(self.agent.id) if of is None else None

    def close(self) -> None:
        """Close all pipes; a property has many workers."""
        links = [r.link for gang in self.agent._all_gangs() for r in gang.ranks if r.link]
        server = self.fork_server
        for pipe in (*links, *server.ranks.values(), server.control, server.outgoing):
            pipe.close()
        self.agent._event_loop.close()

    @property
    def fork_server(self) -> Any:
        return self.agent._event_loop.fork_server

    def _recorded(self, name: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **facts: Any) -> Any:
            if self.away:
                raise sa.exc.OperationalError("", {}, Exception("away"))
            answer = write(*args, **facts)
            if name != "renew":
                self.writes.append(" ".join(filter(None, (name, facts.get("ended")))))
            if name == "acquire" and self.lost_answers:
                self.lost_answers -= 1
                raise sa.exc.OperationalError("", {}, Exception("reset"))
            return answer

        return call

    def open(self) -> int:
        """Let the planner open a trial."""
        assert self.term is not None
        trial = self.study.ask()
        self.table.open_trial(self.agent.id, self.term, trial.number, trial._trial_id)
        return trial.number

    def plan(
        self, number: int, mode: str = "run", slots: int = 1, *others: tuple[str, int]
    ) -> None:
        """Let the planner plan one trial."""
        assert self.term is not None
        further: OtherWorkers = others
        self.table.write_plan(
            self.agent.id, self.term,
            [Assignment(number, mode, self.agent.id, slots, "test", further)],
        )  # fmt: skip
        self.look()

    def gang(self, number: int) -> Gang:
        """The running segment of a trial."""
        [found] = [each for each in self.reconciler.gangs.values() if each.number == number]
        return found

    def look(self) -> None:
        """Let the next turn read the plan, however soon it comes."""
        self.reconciler.read_soon()

    def started(self, slots: int = 1) -> int:
        """A trial whose ranks are forked."""
        number = self.open()
        self.plan(number, slots=slots)
        self.turn()
        return number

    def turn(self, seconds: float = 0.01) -> None:
        """Both threads of the worker have a turn."""
        self.clock.now += seconds
        self.agent._event_loop.replace_dead(self.agent._all_gangs)
        self.receive()
        self.agent._leave_if_due()
        self.agent._enforce_time_limits()
        for gang in list(self.reconciler.gangs.values()):
            gang.conclude()
        self.reconciler.run_pass()
        self.agent._event_loop.run_soon()

    def turns(self, count: int, seconds: float = 1.0) -> None:
        for _ in range(count):
            self.turn(seconds)

    def receive(self) -> None:
        """The event loop's thread reads all that has arrived."""
        loop = self.agent._event_loop
        while (self.fork_server.alive and self.fork_server.control.poll()) or any(
            rank.link is not None and not rank.closed and wait([rank.link], 0)
            for gang in self.agent._all_gangs()
            for rank in gang.ranks
        ):
            loop.poll(self.agent._all_gangs, 0.0)

    def key(self, number: int, index: int = 0) -> tuple[int, int, int]:
        return max(k for k in self.fork_server.ranks if (k[0], k[2]) == (number, index))

    def rank(self, number: int, index: int = 0) -> Any:
        """The other end of a rank's pipe."""
        return self.fork_server.ranks[self.key(number, index)]

    def pid(self, number: int, index: int = 0) -> int:
        found: int = self.fork_server.pids[self.key(number, index)]
        return found

    def say(self, number: int, message: Message) -> None:
        self.rank(number).send(message)

    def ask(self, number: int, method: str, *args: Any) -> Any:
        """Let a rank ask something; the answer, or the error in its place."""
        self.say(number, Question(7, method, args, {}))
        self.turn()
        [answer] = [message for message in self.heard(number) if isinstance(message, Answered)]
        assert answer.number == 7
        return answer.value

    def heard(self, number: int, index: int = 0) -> list[Message]:
        """The messages to a rank since the last look, without those that extend its trust."""
        messages, rank = [], self.rank(number, index)
        while rank.poll():
            message = rank.recv()
            if not isinstance(message, Trusted):
                messages.append(message)
        return messages

    def directives(self, number: int, index: int = 0) -> list[Directive]:
        heard = self.heard(number, index)
        return [message.directive for message in heard if isinstance(message, Directed)]

    def end(self, number: int, end: End | None = None, code: int = 0) -> None:
        """A rank says how it ended, unless it dies without a word, and exits."""
        index = 0
        while (number, self.key(number)[1], index) in self.fork_server.ranks:
            if end is not None:
                self.rank(number, index).send(end)
            self.rank(number, index).close()
            self.fork_server.outgoing.send(("exited", self.key(number, index), code))
            index += 1

    def state(self, number: int = 0) -> tuple[str, str | None]:
        """A trial's state, and how its last segment ended."""
        [line] = [line for line in self.table.trials() if line.number == number]
        return line.state, (self.outcomes(number) or [None])[-1]

    def outcomes(self, number: int = 0) -> list[str | None]:
        """How each segment of a trial ended; None while it runs."""
        return [row.outcome for row in self.table.segments() if row.number == number]

    def steps(self, number: int = 0) -> list[int]:
        return [row.step for row in self.table.reports(number=number)]
