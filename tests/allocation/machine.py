"""The stateful test: all moves, every fault, and the promise that must hold.

Elementary rules find little: the rules that freeze, restart and deliver late are composite, since
the mutants survive hundreds of runs without them.
"""

from __future__ import annotations

from allocation.suite.world import GRACE, TTL
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from moves import index_of
from promise import Promise


class AllocationMachine(Promise):
    """Subclass with a world and, for a mutant, another kind of worker."""

    @precondition(lambda self: self.awake())
    @rule(index=index_of)
    def crash(self, index: int) -> None:
        self.pick(index).crash()

    @precondition(lambda self: self.awake())
    @rule(index=index_of)
    def freeze(self, index: int) -> None:
        self.pick(index).frozen = True

    @precondition(lambda self: any(worker.frozen for worker in self.everyone))
    @rule(index=index_of)
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
        number=index_of,
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
    @rule(index=index_of, number=index_of, seconds=st.sampled_from([24, 31, 46]))
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
    @rule(index=index_of)
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
    @rule(index=index_of, number=index_of)
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
        self.table.cancel_grant(worker.me, number, line.fence)

    @precondition(lambda self: self.awake())
    @rule(index=index_of)
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
    @rule(index=index_of, number=index_of)
    def leader_freezes_in_the_middle_of_its_plan(self, index: int, number: int) -> None:
        leader, number = self.pick(index), number % len(self.trials)
        self.elect(leader)
        self.wait(TTL + 1)
        other = next(worker for worker in self.awake() if worker is not leader)
        self.elect(other)
        self.plan(other, number, other, 1)
        self.plan(leader, number, leader, 1)
