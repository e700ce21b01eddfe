"""A simulated worker: asks the table what the real agent asks, at the times at which it asks."""

from __future__ import annotations

import math
from collections.abc import Collection

from optuna_deadline.allocation.records import About, Desired, Orders
from optuna_deadline.directives import Directive, Kind, directive_for
from optuna_deadline.forecasting.throughput import closing_seconds
from optuna_deadline.planning.planner import Planner
from optuna_deadline.policies.api import Policy
from optuna_deadline.simulation.clock import Rhythm, Timer
from optuna_deadline.simulation.environment import World
from optuna_deadline.simulation.segment import Segment

#: As in the agent: what a stop is taken to last at first, and when who has not left is killed.
_FIRST_STOP, _LAST_MOMENT = 0.3, 0.4


class SimulatedWorker:
    """One host's worker with its planner, in one incarnation.

    Args:
        world: Where it works.
        host: Its host.
        incarnation: How many workers this host had before.
        policy: Decides, should this worker's planner be elected.
        slots: What it offers; None for all that the cluster's hosts have.
    """

    def __init__(
        self,
        world: World,
        host: str,
        incarnation: int,
        policy: Policy,
        slots: int | None = None,
    ) -> None:
        self.id = f"{host}/{incarnation}"
        self._world, self._host, self._incarnation = world, host, incarnation
        self._policy = policy
        self._offer = world.cluster.slots if slots is None else slots
        self._started = math.inf
        self._end = world.deadline
        self._segments: dict[int, Segment] = {}
        self._followed: tuple[Desired, ...] = ()
        self._short = False  #: of slots for a line of these: somebody holds them yet
        self._slowest_stop = _FIRST_STOP
        self._timers: dict[str, Timer] = {}
        self._asked_for = 0
        self._term = world.table.ttl / 6  # from one election to the next
        self._elections: list[float] = []  # that were left out
        timeline, poll = world.timeline, world.cluster.poll
        self._polls = Rhythm(timeline, poll, self._poll)
        self._plans = Rhythm(timeline, max(0.5, poll), self._plan, self._leave_out)
        self._planner = Planner(
            world.trials,
            world.table,
            policy,
            direction="maximize",
            started=0.0,
            me=self.id,
            clock=world.timeline.now,
            whole=world.disk.holds,
            purse=world.purse,
        )

    @property
    def rules(self) -> bool:
        """Whether its planner is the elected one."""
        return self._planner.rules

    def start(self) -> None:
        """Join the pool."""
        world, now = self._world, self._world.timeline.now()
        world.at_work.add(self._host)
        kind = world.host_types.get(self._host)
        shared = About(store="simulated://", address=self._host, host_type=kind)
        about = About(host_type=kind) if world.cluster.across is None else shared
        world.table.register(self.id, self._host, self._incarnation, [], self._offer, about=about)
        world.workers[self.id] = self
        self._tell_planners()
        self._started = now
        self._renew(world.latest, ())
        self._polls.restart(now)
        self._plans.restart(now)
        self._mind_the_time()
        dies = world.cluster.faults.host_dies_after(world.seed, self._host, self._incarnation)
        if now + dies < world.deadline:
            self._set("vanish", now + dies)

    def _set(self, what: str, instant: float) -> None:
        """Let one of the methods below happen at an instant, and not when it was to happen."""
        if what in self._timers:
            self._timers[what].cancel()
        self._timers[what] = self._world.timeline.at(instant, getattr(self, f"_{what}"))

    def _renew(self, at: float, held: Collection[tuple[int, int]]) -> None:
        """Renew leases as of an instant.

        Every sixth of a lease would do the same: a live worker's leases do not run out. So they
        are renewed far ahead, and a host that dies takes that back.
        """
        with self._world.timeline.as_of(at):
            self._world.table.renew(self.id, held)

    # What others tell.

    def hear_news(self) -> None:
        """Another worker has joined, or a trial of it has reported: the next plan sees it."""
        if self._planner.rules:
            self._plans.wake()

    def hear_plan(self) -> None:
        """The plan or the state of a trial in it was changed: the next look is worth while."""
        self._polls.wake()

    def hear_loss(self) -> None:
        """It may be this worker that plans from now on."""
        self._plans.wake()
        self._polls.wake()

    # Planning.

    def replan(self) -> None:
        """Plan soon: what happens meanwhile is seen by the same plan."""
        self._plans.by(self._world.timeline.now() + self._world.cluster.reading)
        self._tell_planners()

    def _tell_planners(self) -> None:
        for worker in self._world.workers.values():
            if worker is not self:
                worker.hear_news()

    def _spare(self) -> bool:
        """Whether this node is to be given back."""
        provider = self._world.provider
        return provider is not None and provider.spare(self._host)

    def _buy(self) -> None:
        """The provider hears at once how many slots the plan wants."""
        if self._world.provider is not None and not self._offer:
            slots = self._world.table.orders(self.id).pool_slots or 0
            self._world.provider.want(slots)
            if slots != self._asked_for:
                self._asked_for = slots
                self._tell_the_plan()

    def _tell_the_plan(self) -> None:
        for worker in self._world.workers.values():
            worker.hear_plan()

    def _plan(self) -> None:
        now, planner = self._world.timeline.now(), self._planner
        for worker in self._world.workers.values():
            worker.make_up()
        self._world.say_all()
        written = len(self._world.table.state.events)
        if planner.tick():
            self._polls.restart(now)
        if len(self._world.table.state.events) > written:
            self._tell_the_plan()
        self._buy()
        self._plans.rest(self._rests_until())

    def _rests_until(self) -> float:
        """Until when a plan is of no use, if nobody reports."""
        if self._world.purse is not None:
            return -math.inf  # money is spent all the time
        if self._planner.rules:
            return self._planner.quiet_until
        ruled = any(worker.rules for worker in self._world.workers.values())
        return math.inf if ruled else -math.inf

    def _leave_out(self, instant: float) -> None:
        """Note the elections for which the planner would have stood meanwhile."""
        due = self._elections[-1] + self._term if self._elections else self._planner.next_election
        if instant >= due:
            self._elections.append(instant)

    def make_up(self) -> None:
        """Stand for the elections that were left out, if they could be won."""
        self._plans.catch_up()
        if not self._elections:
            return
        if self._planner.rules:
            for instant in self._elections:
                with self._world.timeline.as_of(instant):
                    self._planner.stand()
        self._planner.next_election = self._elections[-1] + self._term
        self._elections.clear()

    # Following the plan.

    def _poll(self) -> None:
        orders = self._world.table.orders(self.id)
        if orders.settled and not self._segments:
            self._leave()
            return
        if orders.end != self._end:
            self._end = orders.end
            self._mind_the_time()
        self._follow(orders)
        if not self._segments and not orders.desired and self._spare():
            self._leave()
            return
        self._polls.rest(-math.inf if self._short or orders.settled else math.inf)

    def _follow(self, orders: Orders) -> None:
        if orders.desired is self._followed and not self._short:
            return
        known, self._followed, self._short = self._followed, orders.desired, False
        for line in _unlike(known, orders.desired):
            if line.owner == self.id:
                segment = self._segments[line.number]
                grant = segment.grant
                others = tuple((part.worker, part.size) for part in grant.others)
                segment.direct(directive_for(line, self.id, grant.size, others))
        if orders.end - orders.now > closing_seconds(self._slowest_stop):
            self._start([line for line in orders.desired if self._is_to_start(line)])

    def _is_to_start(self, line: Desired) -> bool:
        ready = line.owner is None and line.mode == "run" and line.worker == self.id
        return ready and line.number not in self._segments

    def _start(self, lines: list[Desired]) -> None:
        free = self._world.table.free_slots(self.id) if lines else []
        taken: list[tuple[int, int]] = []
        for line in lines:
            grant, own = None, line.slots - sum([slots for _, slots in line.others])
            if len(free) >= own:
                table = self._world.table
                others = {name: table.free_slots(name)[:slots] for name, slots in line.others}
                grant = table.acquire(self.id, line.number, free[:own], others)
            if grant is None:
                self._short = True
                continue
            del free[:own]
            for part in grant.others:
                with self._world.timeline.as_of(self._world.latest):
                    self._world.table.renew(part.worker, part.slots)
            taken += grant.slots
            self._segments[line.number] = Segment(self._world, self, grant, line)
        if taken:
            self._renew(self._world.latest, taken)

    def over(self, segment: Segment) -> None:
        """A segment has released its slots."""
        del self._segments[segment.number]
        if segment.stop_seconds is not None and segment.stop_seconds > self._slowest_stop:
            self._slowest_stop = segment.stop_seconds
            self._mind_the_time()
        self._polls.restart(self._world.timeline.now())
        self._tell_the_plan()  # another worker may wait for this trial
        self.replan()

    def miss(self, worker: str) -> None:
        """Another host has died: the gangs that had slots there end."""
        for segment in list(self._segments.values()):
            if any(part.worker == worker for part in segment.grant.others):
                segment.lose()

    # The end.

    def _mind_the_time(self) -> None:
        self._set("close", self._end - closing_seconds(self._slowest_stop))
        self._set("kill", self._end - _LAST_MOMENT)

    def _close(self) -> None:
        for segment in list(self._segments.values()):
            segment.direct(Directive(Kind.STOP, "the deadline", deadline=True))

    def _kill(self) -> None:
        for segment in list(self._segments.values()):
            segment.kill()

    def _leave(self) -> None:
        self._world.table.leave(self.id)
        self._world.at_work.discard(self._host)
        if self._world.provider is not None:
            self._world.provider.give_back(self._host)
        self._disappear()

    def _disappear(self) -> None:
        self._polls.stop()
        self._plans.stop()
        for timer in self._timers.values():
            timer.cancel()
        del self._world.workers[self.id]
        for worker in self._world.workers.values():
            worker.hear_loss()

    def _vanish(self) -> None:
        """The host dies; a new worker comes up once it is there again."""
        self.make_up()
        self._disappear()
        self._take_back()
        for segment in self._segments.values():
            segment.vanish()
        for worker in list(self._world.workers.values()):
            worker.miss(self.id)
        again = SimulatedWorker(self._world, self._host, self._incarnation + 1, self._policy)
        self._world.timeline.after(self._world.cluster.faults.reboot, again.start)

    def _take_back(self) -> None:
        """Leave the leases as they were when this worker renewed them last."""
        now, every = self._world.timeline.now(), self._world.table.ttl / 6
        last = self._started
        while last + every < now:
            last += every
        for segment in self._segments.values():
            self._renew(max(last, segment.granted), segment.grant.slots)
        for hand in self._world.table.hands(self.id):
            if hand.part.worker == self.id:
                self._renew(last, hand.part.slots)
        self._renew(last, ())


def _unlike(before: tuple[Desired, ...], after: tuple[Desired, ...]) -> list[Desired]:
    """The lines that are not the very rows of before: most of a plan stays as it was."""
    known = set(map(id, before))
    return [line for line in after if id(line) not in known]
