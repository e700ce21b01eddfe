"""Distributes the slots of one plan of AdaptiveHalving to the trials in their turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optuna_deadline.policies.adaptive_halving.course import Course, Pool
from optuna_deadline.policies.api import Order, Pause, Plan, Retire, Run, Snapshot, TrialView
from optuna_deadline.policies.base import SlotCandidate, running_first

TO_FIRST = "on its way to its first report"
_AHEAD = "the furthest and best, beyond the last rung"
_LEADS = "the furthest and best, late for the last rung"
_WAITS = Pause("not among the best of its rung")
_LATE = Pause("waits for a slot")
_BEATEN = Retire("cannot win: too many trials rank above it")
_DIVERGED = Retire("its value is not a finite number")


@dataclass(frozen=True)
class Queue:
    """The trials that may train next.

    Attributes:
        due: On the way to a rung that they are to reach, the lowest rung first.
        early: May yet be due, once more trials have come to their rung.
        waiting: All others, the furthest and best first.
        leading: The trials of which one is still to reach the last rung, the furthest and best
            first; none once enough of them have.
    """

    due: list[SlotCandidate]
    early: list[SlotCandidate]
    waiting: list[SlotCandidate]
    leading: list[TrialView]


@dataclass(frozen=True)
class LastRung:
    """The last rung, which the largest gang of a pool is to reach.

    Attributes:
        step: Its step.
        pool: The pool, whose slots may not all be there yet.
    """

    step: int
    pool: Pool

    def seconds(self, trial: TrialView | None = None) -> float:
        """The time in which a trial, or a new one, reaches it."""
        if trial is None:
            return self.pool.seconds(1, self.step)
        alone = trial.seconds_to(self.step, self.pool.step) or 0.0
        return self.pool.seconds(1, alone / self.pool.step)


class Placement:
    """Distributes the slots of one plan.

    Args:
        snapshot: The study.
        pool: What training costs.
        goals: The rungs, the last one not before the end of a training.
        last: The last rung.
        until: When the course may change by time alone.
    """

    def __init__(
        self, snapshot: Snapshot, pool: Pool, goals: Sequence[int], last: LastRung, until: float
    ) -> None:
        self._snapshot, self._pool, self._goals, self._until = snapshot, pool, goals, until
        self._last = last
        self._free = snapshot.capacity
        self._orders: dict[int, Order] = {}

    def plan(self, queue: Queue, course: Course, opened: int, newcomers: int | None) -> Plan:
        """Serve trials in their turn, new trials, due ones, early ones, then all others.

        At the last moment at which it still reaches the last rung, the leader has its turn first.
        Beyond it, the best one goes on first once no new trial could come as far.
        """
        pool, first = self._pool, self._goals[0]
        fresh = [trial for trial in self._snapshot.alive if trial.step < first]
        in_time = self._in_time(pool.start + pool.step)
        in_time_to_win = in_time and self._in_time(self._last.seconds())
        room = max(0, course.counts[0] - opened) if in_time_to_win else 0
        single = bool(room or fresh)  # gangs once no new trial is to be judged
        gang = 1 if single else pool.gang(max(1, len(queue.due)))
        others = len(queue.due) + len(queue.early) + len(queue.waiting)
        spare = 1 if single else pool.gang(max(1, others))
        self._hurry(queue.leading)
        for claim in queue.waiting[:1]:
            if not in_time_to_win and claim.trial.step >= self._last.step:
                self._run(SlotCandidate(claim.trial, _AHEAD), spare)
        for trial in running_first(fresh):
            self._run(SlotCandidate(trial, TO_FIRST), 1)
        for claim in queue.due:
            if claim.trial.running:
                self._run(claim, gang)
        start = min(room, self._free)
        self._free -= start
        for claim in queue.due:
            self._run(claim, gang)
        for claim in (*queue.early, *queue.waiting):
            self._run(claim, spare)
        if in_time:
            start += self._free if newcomers is None else min(self._free, newcomers - start)
        self._leave(queue, course)
        return Plan(
            orders=self._orders,
            start=start,
            start_reason=f"one of {course.counts[0]} that the time allows",
            gate_open=room > 0 or start > 0,
            holds_until=self._until,
            looks={trial.number: self._next_goal(trial) for trial in self._snapshot.alive},
        )

    def _hurry(self, leading: Sequence[TrialView]) -> None:
        """Give the leader the largest gang once it would reach the last rung no more without it.

        As long as a new trial could reach it, the leader is one that can reach it, too.
        """
        left, pool = self._snapshot.time_left, self._pool
        over = self._last.seconds() > left
        for trial in leading:
            seconds = self._last.seconds(trial)
            if over or seconds <= left:
                pace = trial.step_seconds or pool.step  # slots change at its next step
                if not self._in_time(seconds + pace):
                    self._run(SlotCandidate(trial, _LEADS), pool.sizes[-1])
                return

    def _next_goal(self, trial: TrialView) -> int:
        """The next rung that a trial reaches; beyond the last one, its next step."""
        return next((goal for goal in self._goals if goal > trial.step), trial.step + 1)

    def _run(self, claim: SlotCandidate, gang: int) -> None:
        """Give a trial the slots that it can use.

        One that starts or moves has to make a step in time. One that stays where it is is within
        a step, and may end it.
        """
        trial, pool = claim.trial, self._pool
        if trial.number in self._orders or self._free < 1:
            return
        slots = pool.kept(gang, self._free)
        if trial.running:
            held = pool.kept(trial.slots, self._free)
            grows = slots > held and held == trial.slots and self._growth_pays(trial, slots)
            slots = slots if grows and self._makes_a_step(trial, slots) else held
        stays = trial.running and slots == trial.slots
        if stays or not trial.reports or self._makes_a_step(trial, slots):
            self._orders[trial.number] = Run(slots, claim.reason)
            self._free -= slots

    def _makes_a_step(self, trial: TrialView, slots: int) -> bool:
        """Whether a trial makes a step on other slots before the deadline."""
        step = (trial.step_seconds or self._pool.step) / self._pool.speedup(slots)
        return self._in_time(self._pool.start + step)

    def _growth_pays(self, trial: TrialView, slots: int) -> bool:
        """Whether a trial reaches its goal sooner in a larger gang, with the restart counted."""
        pool = self._pool
        goal = next((goal for goal in self._goals if goal > trial.step), trial.step)
        now, then = pool.speedup(trial.slots), pool.speedup(slots)
        left = trial.seconds_to(goal, pool.step) or 0.0
        work = min(left, self._snapshot.time_left * now)
        return work / now > work / then + pool.start

    def _in_time(self, seconds: float) -> bool:
        """Whether something ends before the deadline; the plan holds as long as it does."""
        spare = self._snapshot.time_left - seconds
        if spare > 0:
            self._until = min(self._until, self._snapshot.now + spare)
        return spare >= 0

    def _leave(self, queue: Queue, course: Course) -> None:
        for claim in (*queue.due, *queue.early):
            self._orders.setdefault(claim.trial.number, Pause(f"waits for a slot: {claim.reason}"))
        kept = max(course.counts[1:], default=0) + 2 * self._snapshot.capacity + 8
        for place, claim in enumerate(queue.waiting):
            order = _WAITS if place < kept else _BEATEN
            self._orders.setdefault(claim.trial.number, order)
        for trial in self._snapshot.alive:  # without a place in the queue
            late = trial.step < self._goals[0]
            self._orders.setdefault(trial.number, _LATE if late else _DIVERGED)
