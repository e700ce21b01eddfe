"""What holds at every instant, whatever the workers do and suffer, and what holds in the end."""

from __future__ import annotations

import itertools

from allocation.suite.world import GRACE, TTL, assert_legal
from hypothesis.stateful import invariant
from model import ModelWorker
from moves import Moves

from optuna_deadline.allocation.records import Assignment


class Promise(Moves):
    """The invariants, and the end of each run."""

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
