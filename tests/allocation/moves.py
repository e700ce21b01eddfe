"""Two workers, one or two slots, one or two trials, and everything that one of them may do."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import ClassVar

from allocation.suite.world import AllocationWorld
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from model import ModelWorker, Ranks

from optuna_deadline.allocation.records import Assignment
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.errors import DeadlineError, LeaseLost

#: Picks a worker, a trial or a gang: whatever there is, modulo how many.
index_of = st.integers(0, 3)
_examples = itertools.count()
_answer = st.sampled_from(["heard", "heard", "lost", "late"])
_LAYOUTS = ([["gpu:0"], ["gpu:1"]], [["gpu:0"], ["gpu:0"]], [["gpu:0", "gpu:1"]] * 2)


class Moves(RuleBasedStateMachine):
    """The elementary rules, and what others are made of."""

    make_world: ClassVar[Callable[[], AllocationWorld]]
    worker_kind: ClassVar[type[ModelWorker]] = ModelWorker

    @initialize(layout=st.sampled_from(_LAYOUTS), trials=st.integers(1, 2))
    def begin(self, layout: list[list[str]], trials: int) -> None:
        self.name = f"example-{next(_examples)}"
        self.world = type(self).make_world()
        self.table: AllocationTable = self.world.table(self.name, self.name)
        self.layout = layout
        self.everyone: list[ModelWorker] = []
        self.seats: list[ModelWorker | None] = [None, None]
        self.late: list[Callable[[], object]] = []
        self.epochs: list[tuple[int, int]] = []
        self.newest_term = 0
        self.trials = range(trials)
        for seat in (0, 1):
            self.seat(seat)
        first = self.everyone[0]
        self.elect(first)
        assert first.term is not None
        for number in self.trials:
            self.table.open_trial(first.me, first.term, number, 100 + number)
        self.plan(first, 0, self.everyone[0], 1)
        self.plan(first, trials - 1, self.everyone[-1], 1)

    # What rules are made of.

    def now(self) -> float:
        return self.world.time

    def wait(self, seconds: float) -> None:
        self.world.time += seconds
        for worker in self.everyone:
            worker.watch()

    def seat(self, seat: int) -> ModelWorker | None:
        """Start a process; None where its devices are still offered by another one."""
        me = f"{self.name}-{'ab'[seat]}.{len(self.everyone)}"
        worker = type(self).worker_kind(me, self.table, self.now, self.wait)
        try:
            worker.register(f"{self.name}-host", self.layout[seat])
        except DeadlineError:
            return None
        self.everyone.append(worker)
        self.seats[seat] = worker
        return worker

    def elect(self, worker: ModelWorker) -> None:
        worker.term = self.table.elect_planner(worker.me)
        if worker.term is not None:
            assert worker.term >= self.newest_term
            self.newest_term = worker.term

    def plan(self, ruler: ModelWorker, number: int, target: ModelWorker, slots: int) -> None:
        """Write a plan under the term that the ruler believes in."""
        if ruler.term is None:
            return
        lines = [Assignment(number, "run", target.me, slots, "test")]
        try:
            epoch = self.table.write_plan(ruler.me, ruler.term, lines)
        except LeaseLost:
            assert ruler.term < self.newest_term
        else:
            self.epochs.append((epoch, ruler.term))

    def rule_and_plan(self, number: int, target: ModelWorker, slots: int = 1) -> None:
        """Let a worker that can be elected plan."""
        for worker in (target, *self.everyone):
            if worker.awake:
                self.elect(worker)
                if worker.term is not None:
                    self.plan(worker, number, target, slots)
                    return

    def awake(self) -> list[ModelWorker]:
        return [worker for worker in self.everyone if worker.awake]

    def pick(self, index: int) -> ModelWorker:
        awake = self.awake()
        return awake[index % len(awake)]

    def running(self) -> list[tuple[ModelWorker, int]]:
        return [(worker, number) for worker in self.awake() for number in sorted(worker.gangs)]

    def save(self, worker: ModelWorker, ranks: Ranks) -> None:
        """A checkpoint is taken from the trial's owner only, and never after the next grant."""
        if worker.save(ranks):
            line = self.table.trials()[ranks.grant.number]
            assert (line.owner, line.fence) == (worker.me, ranks.grant.fence)

    def send(self, request: Callable[[], object], answer: str) -> bool:
        """Send now, lose the answer, or deliver late; returns whether the answer arrived."""
        if answer == "late":
            self.late.append(request)
        else:
            request()
        return answer == "heard"

    # Elementary rules.

    @rule(seconds=st.sampled_from([1, 4, 11, 16, 21, 31]))
    def pass_time(self, seconds: int) -> None:
        self.wait(seconds)

    @precondition(lambda self: self.awake())
    @rule(index=index_of, heard=st.booleans(), delay=st.sampled_from([0, 0, 0, 8, 27]))
    def renew(self, index: int, heard: bool, delay: int) -> None:
        self.pick(index).renew(delay, heard)

    @precondition(lambda self: self.awake())
    @rule(index=index_of, obey=st.booleans())
    def follow(self, index: int, obey: bool) -> None:
        self.pick(index).follow(obey)

    @precondition(lambda self: self.awake())
    @rule(index=index_of, number=index_of, answer=_answer)
    def start(self, index: int, number: int, answer: str) -> None:
        worker, number = self.pick(index), number % len(self.trials)
        if answer != "late":
            worker.start(number, heard=answer == "heard")
        elif (slots := worker.slots_for(number)) is not None:
            self.late.append(lambda: self.table.acquire(worker.me, number, slots))

    @precondition(lambda self: self.running())
    @rule(index=index_of, answer=_answer)
    def stop(self, index: int, answer: str) -> None:
        running = self.running()
        worker, number = running[index % len(running)]
        if self.send(worker.stop(number), answer):
            worker.past.append(worker.gangs.pop(number))

    @precondition(lambda self: self.running())
    @rule(index=index_of, late=st.booleans())
    def checkpoint(self, index: int, late: bool) -> None:
        running = self.running()
        worker, number = running[index % len(running)]
        ranks = worker.gangs[number]
        self.send(lambda: self.save(worker, ranks), "late" if late else "heard")

    @precondition(lambda self: self.late)
    @rule(index=index_of)
    def deliver(self, index: int) -> None:
        self.late.pop(index % len(self.late))()

    @precondition(lambda self: self.awake())
    @rule(index=index_of)
    def stand_for_election(self, index: int) -> None:
        self.elect(self.pick(index))

    @precondition(lambda self: self.awake())
    @rule(ruler=index_of, number=index_of, aim=index_of, slots=st.integers(1, 2))
    def write_plan(self, ruler: int, number: int, aim: int, slots: int) -> None:
        number, target = number % len(self.trials), self.everyone[aim % len(self.everyone)]
        self.plan(self.pick(ruler), number, target, slots)

    @rule()
    def reap(self) -> None:
        self.table.reap()
