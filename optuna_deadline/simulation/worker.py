"""A simulated worker: asks the table what the real agent asks, at the times at which it asks."""

from __future__ import annotations

from optuna_deadline.allocation.records import Desired, Orders
from optuna_deadline.directives import Directive, Kind, directive_for
from optuna_deadline.forecasting.overheads import closing_seconds
from optuna_deadline.planning.planner import Planner
from optuna_deadline.policies.plan import Policy
from optuna_deadline.simulation.segment import Segment
from optuna_deadline.simulation.timeline import Timer
from optuna_deadline.simulation.world import World

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
        self._end = world.deadline
        self._segments: dict[int, Segment] = {}
        self._followed: tuple[Desired, ...] | None = None  #: what was carried out to the last line
        self._slowest_stop = _FIRST_STOP
        self._timers: dict[str, Timer] = {}
        self._plan_at = 0.0
        self._interval = max(0.5, world.cluster.poll)
        self._planner = Planner(
            world.trials,
            world.table,
            policy,
            direction="maximize",
            started=0.0,
            me=self.id,
            clock=world.timeline.now,
            whole=world.disk.holds,
            purse=world.provider,
        )

    def start(self) -> None:
        """Join the pool."""
        world, now = self._world, self._world.timeline.now()
        world.at_work.add(self._host)
        world.table.register(self.id, self._host, self._incarnation, [], self._offer)
        self._set("renew", now + world.table.ttl / 6)
        self._set("poll", now)
        self._plan_by(now)
        self._mind_the_time()
        dies = world.cluster.faults.host_dies_after(world.seed, self._host, self._incarnation)
        if now + dies < world.deadline:
            self._set("vanish", now + dies)

    def _set(self, what: str, instant: float) -> None:
        """Let one of the methods below happen at an instant, and not when it was to happen."""
        if what in self._timers:
            self._timers[what].cancel()
        self._timers[what] = self._world.timeline.at(instant, getattr(self, f"_{what}"))

    # Planning.

    def replan(self) -> None:
        """Plan soon: what happens meanwhile is seen by the same plan."""
        self._plan_by(self._world.timeline.now() + self._world.cluster.reading)

    def _plan_by(self, instant: float) -> None:
        if "plan" not in self._timers or instant < self._plan_at:
            self._plan_at = instant
            self._set("plan", instant)

    def _spare(self) -> bool:
        """Whether this node is to be given back."""
        provider = self._world.provider
        return provider is not None and provider.spare(self._host)

    def _buy(self) -> None:
        """The provider hears at once how many slots the plan wants."""
        if self._world.provider is not None and not self._offer:
            self._world.provider.want(self._world.table.orders(self.id).pool_slots or 0)

    def _plan(self) -> None:
        del self._timers["plan"]
        if self._planner.tick():
            self._set("poll", self._world.timeline.now())
        self._buy()
        self._plan_by(self._world.timeline.now() + self._interval)

    # Following the plan.

    def _renew(self) -> None:
        table = self._world.table
        held = [pair for segment in self._segments.values() for pair in segment.grant.slots]
        table.renew(self.id, held)
        self._set("renew", self._world.timeline.now() + table.ttl / 6)

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
        self._set("poll", self._world.timeline.now() + self._world.cluster.poll)

    def _follow(self, orders: Orders) -> None:
        if orders.desired is self._followed:
            return
        self._followed = orders.desired
        for line in orders.desired:
            if line.owner == self.id:
                segment = self._segments[line.number]
                segment.direct(directive_for(line, self.id, segment.grant.size))
        if orders.end - orders.now > closing_seconds(self._slowest_stop):
            self._start([line for line in orders.desired if self._is_to_start(line)])

    def _is_to_start(self, line: Desired) -> bool:
        ready = line.owner is None and line.mode == "run" and line.worker == self.id
        return ready and line.number not in self._segments

    def _start(self, lines: list[Desired]) -> None:
        free = self._world.table.free_slots(self.id) if lines else []
        for line in lines:
            grant = None
            if len(free) >= line.slots:
                grant = self._world.table.acquire(self.id, line.number, free[: line.slots])
            if grant is None:
                self._followed = None  # somebody holds the slots yet: to be tried again
                continue
            del free[: line.slots]
            self._segments[line.number] = Segment(self._world, self, grant, line)

    def over(self, segment: Segment) -> None:
        """A segment has released its slots."""
        del self._segments[segment.number]
        if segment.stop_seconds is not None and segment.stop_seconds > self._slowest_stop:
            self._slowest_stop = segment.stop_seconds
            self._mind_the_time()
        self._set("poll", self._world.timeline.now())
        self.replan()

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
        for timer in self._timers.values():
            timer.cancel()

    def _vanish(self) -> None:
        """The host dies; a new worker comes up once it is there again."""
        self._disappear()
        for segment in self._segments.values():
            segment.vanish()
        again = SimulatedWorker(self._world, self._host, self._incarnation + 1, self._policy)
        self._world.timeline.after(self._world.cluster.faults.reboot, again.start)
