"""A simulated worker: it uses the table like the real agent, at the same times."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from optuna_deadline.allocation.records import MachineInfo, Orders, PlannedTrial
from optuna_deadline.directives import KEEP
from optuna_deadline.forecasting.throughput import closing_seconds
from optuna_deadline.planning.planner import Planner
from optuna_deadline.policies.api import Policy
from optuna_deadline.simulation.clock import SkippableTimer, Timer
from optuna_deadline.simulation.environment import World
from optuna_deadline.simulation.segment import SimulatedSegment
from optuna_deadline.worker.rules import (
    FIRST_STOP,
    LAST_MOMENT,
    directive_for,
    in_force,
    is_to_start,
    own_slots,
)


class SimulatedWorker:
    """The worker and planner of one host, from start to death.

    Args:
        world: The shared state.
        host: Its host.
        incarnation: How many workers this host had before.
        policy: The policy, used while its planner is elected.
        slots: The slots that it offers; None for those of the cluster's hosts.
    """

    def __init__(
        self,
        world: World,
        host: str,
        incarnation: int,
        policy: Policy,
        slots: int | None = None,
    ) -> None:
        study = world.table.study_id
        self.id = f"{host}/{incarnation}" if study == 1 else f"{host}/{incarnation}/study{study}"
        self._world, self._host, self._incarnation = world, host, incarnation
        self._policy = policy
        self._offer = world.cluster.slots if slots is None else slots
        self._started = math.inf
        self._end = world.deadline
        self._segments: dict[int, SimulatedSegment] = {}
        self._reconciled: tuple[PlannedTrial, ...] = ()
        self._lacks_slots = False  #: whether others still hold slots of the plan
        self._slowest_stop = FIRST_STOP
        self._timers: dict[Callable[[], None], Timer] = {}
        self._asked_for = 0
        self._term = world.table.ttl / 6  # since the last election
        self._skipped_elections: list[float] = []  # skipped elections
        timeline, poll = world.timeline, world.cluster.poll
        self._poll_timer = SkippableTimer(timeline, poll, self._poll)
        self._plan_timer = SkippableTimer(
            timeline, max(0.5, poll), self._plan, self._skip_election
        )
        self._planner = Planner(
            world.trials,
            world.table,
            policy,
            direction="maximize",
            worker_id=self.id,
            clock=world.timeline.now,
            is_intact=world.disk.has_checkpoint,
            budget_account=world.budget_account,
            exponent=world.cluster.speedup.exponent,
        )

    @property
    def is_elected(self) -> bool:
        """Whether its planner is elected."""
        return self._planner.is_elected

    def start(self) -> None:
        """Join the pool."""
        world, now = self._world, self._world.timeline.now()
        world.working_hosts.add(self._host)
        kind = world.host_types.get(self._host)
        shared = MachineInfo(store="simulated://", address=self._host, host_type=kind)
        about = MachineInfo(host_type=kind) if world.cluster.across is None else shared
        world.table.register(
            self.id, self._host, self._incarnation, [], self._offer, world.weight, about
        )
        world.workers[self.id] = self
        self._wake_planners()
        self._started = now
        self._renew(world.latest, ())
        self._poll_timer.restart(now)
        self._plan_timer.restart(now)
        self._schedule_end()
        dies = world.cluster.faults.host_dies_after(world.seed, self._host, self._incarnation)
        if now + dies < world.deadline:
            self._reschedule(self._vanish, now + dies)

    def _reschedule(self, action: Callable[[], None], instant: float) -> None:
        """Call a method at an instant, and no longer when it was due before."""
        if action in self._timers:
            self._timers[action].cancel()
        self._timers[action] = self._world.timeline.at(instant, action)

    def _renew(self, at: float, held: Collection[tuple[int, int]]) -> None:
        """Renew leases as of an instant.

        A live worker's leases never expire, so they are renewed far ahead instead of every sixth
        of a lease. A host that dies undoes that.
        """
        with self._world.timeline.as_of(at):
            self._world.table.renew(self.id, held)

    # Calls by other workers.

    def wake_planner(self) -> None:
        """Plan: another worker has joined, or one of its trials has reported."""
        if self._planner.is_elected:
            self._plan_timer.wake()

    def wake_poll(self) -> None:
        """Poll: the plan, or the state of a trial in it, has changed."""
        self._poll_timer.wake()

    def wake_all(self) -> None:
        """Do both: this worker may be the next planner."""
        self._plan_timer.wake()
        self._poll_timer.wake()

    # Planning.

    def replan(self) -> None:
        """Plan soon; changes until then are part of the same plan."""
        self._plan_timer.fire_by(self._world.timeline.now() + self._world.cluster.reading)
        self._wake_planners()

    def _wake_planners(self) -> None:
        for worker in self._world.workers.values():
            if worker is not self:
                worker.wake_planner()

    def _is_spare(self) -> bool:
        """Whether this node is to be returned."""
        provider = self._world.provider
        return provider is not None and provider.may_give_back(self._host)

    def _request_nodes(self) -> None:
        """Send the number of wanted slots to the provider."""
        if self._world.provider is not None and not self._offer:
            slots = self._world.table.orders(self.id).pool_slots or 0
            self._world.provider.request(slots)
            if slots != self._asked_for:
                self._asked_for = slots
                self._wake_workers()

    def _wake_workers(self) -> None:
        for worker in self._world.workers.values():
            worker.wake_poll()

    def _plan(self) -> None:
        now, planner = self._world.timeline.now(), self._planner
        for worker in self._world.workers.values():
            worker.catch_up_elections()
        self._world.write_all_progress()
        written = self._world.table.database.written
        if planner.tick():
            self._poll_timer.restart(now)
        if self._world.table.database.written > written:
            self._wake_workers()
        self._request_nodes()
        self._plan_timer.skip_until(self._idle_until())

    def _idle_until(self) -> float:
        """Until when a plan changes nothing without new reports."""
        if self._world.budget_account is not None:
            return -math.inf  # the budget shrinks all the time
        if self._planner.is_elected:
            return self._planner.quiet_until
        ruled = any(worker.is_elected for worker in self._world.workers.values())
        return math.inf if ruled else -math.inf

    def _skip_election(self, instant: float) -> None:
        """Record the elections that the planner has skipped."""
        due = (
            self._skipped_elections[-1] + self._term
            if self._skipped_elections
            else self._planner.next_election
        )
        if instant >= due:
            self._skipped_elections.append(instant)

    def catch_up_elections(self) -> None:
        """Run in the skipped elections if they can be won."""
        self._plan_timer.catch_up()
        if not self._skipped_elections:
            return
        if self._planner.is_elected:
            for instant in self._skipped_elections:
                with self._world.timeline.as_of(instant):
                    self._planner.try_elect()
        self._planner.next_election = self._skipped_elections[-1] + self._term
        self._skipped_elections.clear()

    # Following the plan.

    def _poll(self) -> None:
        orders = self._world.table.orders(self.id)
        if orders.settled and not self._segments:
            self._leave()
            return
        if orders.end != self._end:
            self._end = orders.end
            self._schedule_end()
        self._reconcile(orders)
        if not self._segments and not orders.trials and self._is_spare():
            self._leave()
            return
        self._poll_timer.skip_until(-math.inf if self._lacks_slots or orders.settled else math.inf)

    def _reconcile(self, orders: Orders) -> None:
        if orders.trials is self._reconciled and not self._lacks_slots:
            return
        known, self._reconciled, self._lacks_slots = self._reconciled, orders.trials, False
        for row in _changed_rows(known, orders.trials):
            if row.owner == self.id:
                segment = self._segments[row.number]
                grant = segment.grant
                others = tuple((part.worker, part.size) for part in grant.others)
                planned = directive_for(row, self.id, grant.size, others)
                segment.send_directive(in_force(segment.directive, planned))
        if orders.end - orders.now > closing_seconds(self._slowest_stop):
            starts = [row for row in orders.trials if is_to_start(row, self.id, self._segments)]
            self._start(starts)

    def _start(self, rows: list[PlannedTrial]) -> None:
        free = self._world.table.free_slots(self.id) if rows else []
        taken: list[tuple[int, int]] = []
        for row in rows:
            grant, own = None, own_slots(row)
            if len(free) >= own:
                table = self._world.table
                others = {name: table.free_slots(name)[:slots] for name, slots in row.others}
                grant = table.acquire(self.id, row.number, free[:own], others)
            if grant is None:
                self._lacks_slots = True
                continue
            del free[:own]
            for part in grant.others:
                with self._world.timeline.as_of(self._world.latest):
                    self._world.table.renew(part.worker, part.slots)
            taken += grant.slots
            self._segments[row.number] = SimulatedSegment(self._world, self, grant, row)
        if taken:
            self._renew(self._world.latest, taken)

    def segment_released(self, segment: SimulatedSegment) -> None:
        """Plan and poll: a segment has released its slots."""
        del self._segments[segment.number]
        if segment.stop_seconds is not None and segment.stop_seconds > self._slowest_stop:
            self._slowest_stop = segment.stop_seconds
            self._schedule_end()
        self._poll_timer.restart(self._world.timeline.now())
        self._wake_workers()  # another worker may wait for this trial
        self.replan()

    def end_gangs_with(self, worker: str) -> None:
        """End the gangs with slots of a host that has died."""
        for segment in list(self._segments.values()):
            if any(part.worker == worker for part in segment.grant.others):
                segment.lose_peer_host()

    # The end.

    def _schedule_end(self) -> None:
        self._reschedule(self._close, self._end - closing_seconds(self._slowest_stop))
        self._reschedule(self._kill, self._end - LAST_MOMENT)

    def _close(self) -> None:
        for segment in list(self._segments.values()):
            segment.send_directive(in_force(segment.directive, KEEP, closing=True))

    def _kill(self) -> None:
        for segment in list(self._segments.values()):
            segment.kill()

    def _leave(self) -> None:
        self._world.table.leave(self.id)
        self._world.working_hosts.discard(self._host)
        if self._world.provider is not None:
            self._world.provider.give_back(self._host)
        self._remove_from_world()

    def _remove_from_world(self) -> None:
        self._poll_timer.stop()
        self._plan_timer.stop()
        for timer in self._timers.values():
            timer.cancel()
        del self._world.workers[self.id]
        for worker in self._world.workers.values():
            worker.wake_all()

    def _vanish(self) -> None:
        """The host dies; a new worker starts after the reboot."""
        self.catch_up_elections()
        self._remove_from_world()
        self._restore_leases()
        for segment in self._segments.values():
            segment.lose_host()
        for worker in list(self._world.workers.values()):
            worker.end_gangs_with(self.id)
        again = SimulatedWorker(self._world, self._host, self._incarnation + 1, self._policy)
        self._world.timeline.after(self._world.cluster.faults.reboot, again.start)

    def _restore_leases(self) -> None:
        """Set the leases back to this worker's last real renewal."""
        now, every = self._world.timeline.now(), self._world.table.ttl / 6
        last = self._started
        while last + every < now:
            last += every
        for segment in self._segments.values():
            self._renew(max(last, segment.granted), segment.grant.slots)
        for hand in self._world.table.memberships(self.id):
            if hand.part.worker == self.id:
                self._renew(last, hand.part.slots)
        self._renew(last, ())


def _changed_rows(
    before: tuple[PlannedTrial, ...], after: tuple[PlannedTrial, ...]
) -> list[PlannedTrial]:
    """The lines that are new objects: most of a plan stays the same."""
    known = set(map(id, before))
    return [row for row in after if id(row) not in known]
