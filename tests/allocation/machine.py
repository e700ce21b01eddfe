"""The stateful test: two workers, one or two slots, one or two trials, and every fault.

Elementary rules find little: the rules that freeze, restart and deliver late are composite, since
the mutants survive hundreds of runs without them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from model import ModelWorker, Ranks

from optuna_deadline.allocation.records import Assignment
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.errors import DeadlineError, LeaseLost
from optuna_deadline.testing.worlds import GRACE, TTL, AllocationWorld, assert_legal

_examples = itertools.count()
_index = st.integers(0, 3)
_answer = st.sampled_from(["heard", "heard", "lost", "late"])
_LAYOUTS = ([["gpu:0"], ["gpu:1"]], [["gpu:0"], ["gpu:0"]], [["gpu:0", "gpu:1"]] * 2)


class AllocationMachine(RuleBasedStateMachine):
    """Subclass with a world and, for a mutant, another kind of worker."""

    make_world: ClassVar[Callable[[], AllocationWorld]]
    worker_kind: ClassVar[type[ModelWorker]] = ModelWorker

    @initialize(layout=st.sampled_from(_LAYOUTS), trials=st.integers(1, 2))
    def begin(self, layout: list[list[str]], trials: int) -> None:
        self.name = f"example-{next(_examples)}"
        self.world = type(self).make_world()
        self.table: AllocationStore = self.world.table(self.name, self.name)
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
        worker.term = self.table.elect(worker.me)
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
        """Let whoever can be elected plan."""
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
        """Send now, lose the answer, or let the request arrive late; whether it was heard."""
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
    @rule(index=_index, heard=st.booleans(), delay=st.sampled_from([0, 0, 0, 8, 27]))
    def renew(self, index: int, heard: bool, delay: int) -> None:
        self.pick(index).renew(delay, heard)

    @precondition(lambda self: self.awake())
    @rule(index=_index, obey=st.booleans())
    def follow(self, index: int, obey: bool) -> None:
        self.pick(index).follow(obey)

    @precondition(lambda self: self.awake())
    @rule(index=_index, number=_index, answer=_answer)
    def start(self, index: int, number: int, answer: str) -> None:
        worker, number = self.pick(index), number % len(self.trials)
        if answer != "late":
            worker.start(number, heard=answer == "heard")
        elif (slots := worker.slots_for(number)) is not None:
            self.late.append(lambda: self.table.acquire(worker.me, number, slots))

    @precondition(lambda self: self.running())
    @rule(index=_index, answer=_answer)
    def stop(self, index: int, answer: str) -> None:
        running = self.running()
        worker, number = running[index % len(running)]
        if self.send(worker.stop(number), answer):
            worker.past.append(worker.gangs.pop(number))

    @precondition(lambda self: self.running())
    @rule(index=_index, late=st.booleans())
    def checkpoint(self, index: int, late: bool) -> None:
        running = self.running()
        worker, number = running[index % len(running)]
        ranks = worker.gangs[number]
        self.send(lambda: self.save(worker, ranks), "late" if late else "heard")

    @precondition(lambda self: self.late)
    @rule(index=_index)
    def deliver(self, index: int) -> None:
        self.late.pop(index % len(self.late))()

    @precondition(lambda self: self.awake())
    @rule(index=_index)
    def stand_for_election(self, index: int) -> None:
        self.elect(self.pick(index))

    @precondition(lambda self: self.awake())
    @rule(ruler=_index, number=_index, aim=_index, slots=st.integers(1, 2))
    def write_plan(self, ruler: int, number: int, aim: int, slots: int) -> None:
        number, target = number % len(self.trials), self.everyone[aim % len(self.everyone)]
        self.plan(self.pick(ruler), number, target, slots)

    @rule()
    def reap(self) -> None:
        self.table.reap()

    # Faults.

    @precondition(lambda self: self.awake())
    @rule(index=_index)
    def crash(self, index: int) -> None:
        self.pick(index).crash()

    @precondition(lambda self: self.awake())
    @rule(index=_index)
    def freeze(self, index: int) -> None:
        self.pick(index).frozen = True

    @precondition(lambda self: any(worker.frozen for worker in self.everyone))
    @rule(index=_index)
    def thaw(self, index: int) -> None:
        frozen = [worker for worker in self.everyone if worker.frozen]
        frozen[index % len(frozen)].frozen = False

    @rule(seat=st.integers(0, 1))
    def restart(self, seat: int) -> None:
        worker = self.seats[seat]
        if worker is None or not worker.awake:
            self.seat(seat)

    @precondition(lambda self: self.awake())
    @rule(
        seat=st.integers(0, 1),
        number=_index,
        seconds=st.sampled_from([20, 24, 31, 36, 46]),
        thaws=st.booleans(),
    )
    def freeze_and_restart_under_the_same_name(
        self, seat: int, number: int, seconds: int, thaws: bool
    ) -> None:
        """The successor wants the slots and the trial of a worker that was frozen at its best."""
        number, old = number % len(self.trials), self.seats[seat]
        if old is None or not old.awake:
            return
        self.rule_and_plan(number, old)
        old.renew()
        old.start(number)
        old.frozen = True
        self.wait(seconds)
        new = self.seat(seat)
        self.table.reap()
        if new is not None:
            self.rule_and_plan(number, new)
            new.start(number)
            self.check_uses()
        if thaws:
            old.frozen = False
            if number in old.gangs:
                self.save(old, old.gangs[number])
            old.renew()
            self.check_beliefs()
            old.follow()

    @precondition(lambda self: self.awake())
    @rule(index=_index, number=_index, seconds=st.sampled_from([24, 31, 46]))
    def freeze_between_grant_and_launch(self, index: int, number: int, seconds: int) -> None:
        """The others get on with it meanwhile, and the launch comes too late."""
        worker, number = self.pick(index), number % len(self.trials)
        self.rule_and_plan(number, worker)
        worker.renew()
        waited = self.wait

        def wait(freeze: float) -> None:
            waited(freeze)
            if freeze:
                self.table.reap()
                for other in self.awake():
                    if other is not worker:
                        other.renew()
                        self.rule_and_plan(number, other)
                        other.start(number)

        worker.wait = wait
        worker.start(number, freeze=seconds)
        worker.wait = waited

    @precondition(lambda self: self.running())
    @rule(index=_index)
    def release_arrives_after_the_next_grant(self, index: int) -> None:
        """It was sent twice, and the first copy comes when the trial runs here again."""
        running = self.running()
        worker, number = running[index % len(running)]
        release = worker.stop(number)
        worker.follow(obey=False)
        worker.renew()
        worker.start(number)
        release()

    @precondition(lambda self: self.awake())
    @rule(index=_index, number=_index)
    def a_grant_is_never_heard_of(self, index: int, number: int) -> None:
        """The next look at the plan gives it back; a second copy of that comes too late."""
        worker, number = self.pick(index), number % len(self.trials)
        self.rule_and_plan(number, worker)
        worker.renew()
        worker.start(number, heard=False)
        line = self.table.trials()[number]
        if line.owner != worker.me or number in worker.gangs:
            return
        worker.follow(obey=False)
        assert self.table.trials()[number].owner is None
        worker.start(number)
        self.table.disown(worker.me, number, line.fence)

    @precondition(lambda self: self.awake())
    @rule(index=_index)
    def a_request_is_granted_after_the_reaping(self, index: int) -> None:
        """It was sent before the worker froze with another trial on the same slots."""
        worker = self.pick(index)
        for number in self.trials:
            self.rule_and_plan(number, worker)
        worker.renew()
        last = self.trials[-1]
        slots = worker.slots_for(last)
        worker.start(0)
        self.wait(TTL + GRACE + 1)
        self.table.reap()
        if slots is not None:
            self.table.acquire(worker.me, last, slots)
        worker.renew()

    @precondition(lambda self: len(self.awake()) > 1)
    @rule(index=_index, number=_index)
    def leader_freezes_in_the_middle_of_its_plan(self, index: int, number: int) -> None:
        leader, number = self.pick(index), number % len(self.trials)
        self.elect(leader)
        self.wait(TTL + 1)
        other = next(worker for worker in self.awake() if worker is not leader)
        self.elect(other)
        self.plan(other, number, other, 1)
        self.plan(leader, number, leader, 1)

    # What must hold after every step.

    @invariant()
    def check_uses(self) -> None:
        """I1: at every instant one user of a slot, and one of a trial."""
        slots: dict[int, str] = {}
        trials: dict[int, str] = {}
        for worker in self.everyone:
            for grant in worker.in_use():
                who = f"{worker.me} under fence {grant.fence}"
                other = trials.setdefault(grant.number, who)
                assert other == who, f"{other} and {who} train trial {grant.number}"
                for slot, _ in grant.slots:
                    other = slots.setdefault(slot, who)
                    assert other == who, f"{other} and {who} use slot {slot}"

    @invariant()
    def check_beliefs(self) -> None:
        """What a worker takes for its own is its own, and longer than it believes (I5)."""
        rows = {row.id: row for row in self.table.slots()}
        lines = {line.number: line for line in self.table.trials()}
        for worker in self.everyone:
            for grant in worker.believed():
                line = lines[grant.number]
                assert (line.owner, line.fence) == (worker.me, grant.fence)
                for slot, fence in grant.slots:
                    row = rows[slot]
                    assert (row.holder, row.fence) == (worker.me, fence)
                    assert row.lease is not None and worker.trusted_until <= row.lease

    @invariant()
    def check_epochs(self) -> None:
        """I6: epochs strictly rise, each carries one term, and terms never go back."""
        for (epoch, term), (next_epoch, next_term) in itertools.pairwise(self.epochs):
            assert epoch < next_epoch and term <= next_term

    def teardown(self) -> None:
        """I3 on the whole log, and I7: once the faults stop, everything planned runs."""
        if not hasattr(self, "everyone"):
            return
        for request in self.late:
            request()
        for worker in self.everyone:
            worker.frozen = False
        self.check_uses()
        end, planned = self.now() + 2 * (TTL + GRACE), False
        while self.now() < end:
            for seat in (0, 1):
                worker = self.seats[seat]
                if worker is None or worker.dead:
                    self.seat(seat)
            for worker in self.awake():
                worker.renew()
                worker.follow()
                self.elect(worker)
                if worker.term is not None and self.now() > end - TTL - GRACE and not planned:
                    planned = self.assign(worker)
                worker.start_all()
                self.check_uses()
            self.check_beliefs()
            self.table.reap()
            self.wait(9)
        for line in self.table.trials():
            if line.mode == "run":
                assert line.owner == line.worker, f"trial {line.number} does not run again"
        events = self.table.events()
        assert_legal(events)
        assert {event.slot for event in events if event.slot} <= {
            row.id for row in self.table.slots()
        }

    def assign(self, ruler: ModelWorker) -> bool:
        """A plan that fits: each trial on a slot of a worker that is there."""
        assert ruler.term is not None
        free = [worker for row in self.table.slots() for worker in row.offered_by]
        for number in self.trials:
            if number < len(free):
                line = Assignment(number, "run", free[number], 1, "fits")
            else:
                line = Assignment(number, "pause", None, 0, "no slot left")
            self.table.write_plan(ruler.me, ruler.term, [line])
        return True
