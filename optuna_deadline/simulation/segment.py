"""A simulated segment: it starts, trains along its curve, reports, saves, and leaves or dies."""

from __future__ import annotations

import math
from typing import Protocol

from optuna_deadline.allocation.records import Grant, NewReport, PlannedTrial
from optuna_deadline.checkpoints.files import Checkpoint
from optuna_deadline.directives import KEEP, Directive, Kind
from optuna_deadline.simulation.clock import Timer
from optuna_deadline.simulation.environment import World
from optuna_deadline.worker.rules import MAX_DEATHS, deaths_after


class SegmentOwner(Protocol):
    """The worker, as its segments see it."""

    id: str

    def replan(self) -> None:
        """Plan again: the segment wrote something to the table."""

    def segment_released(self, segment: SimulatedSegment) -> None:
        """The segment has released its slots."""


class SimulatedSegment:
    """A stretch of training on fixed slots.

    Training is continuous between reports: a segment that must leave stops within a report step,
    as ranks do at the next optimizer step.

    Args:
        world: The shared state.
        worker: Its worker.
        grant: Its slots.
        line: The trial's row before the grant.
    """

    def __init__(
        self, world: World, worker: SegmentOwner, grant: Grant, row: PlannedTrial
    ) -> None:
        self.number, self.grant = grant.number, grant
        self.directive: Directive = KEEP
        self.stop_seconds: float | None = None
        self._world, self._worker = world, worker
        self._failures = row.failures
        workload, cluster, number = world.workload, world.cluster, grant.number
        configuration = world.configuration(number)
        self._curve, self._every = workload.curves[configuration], workload.every
        slowness = cluster.faults.slowness(world.seed, number, grant.fence)
        pace = workload.step_seconds[configuration] * slowness
        speed = cluster.speed(grant)
        self._rate, self._speed = speed / pace, speed / slowness
        self._clock = workload.clock(configuration)
        known = world.table.checkpoints_to_start(row)
        saved = next((c for c in known if world.disk.has_checkpoint(c)), None)
        self._from = world.disk.positions[saved.path] if saved is not None else 0.0
        best = (c.value for c in world.table.checkpoints(number) if c.value is not None)
        self._best = max(best, default=-math.inf)
        self._trained_before = world.table.trained_before(number, grant.fence)
        self.granted = world.timeline.now()
        self._ready = self._saved_at = self.granted + world.startup_of(number)
        self._stopped_at = math.inf  # when training ends
        self._saved, self._has_saved = self._from, False
        self._unwritten: tuple[float, float] | None = None
        self._step = (math.floor(self._from / self._every + 1e-9) + 1) * self._every
        self._timer = world.timeline.at(self._ready, self._train)
        self._crash: Timer | None = None
        after = cluster.faults.crash_after(world.seed, number, grant.fence, grant.size)
        if math.isfinite(after):
            self._crash = world.timeline.at(self._ready + after, self._die)

    @property
    def _last(self) -> int:
        """The step at which the trial is done."""
        return len(self._curve) * self._every

    # Training.

    def _train(self) -> None:
        self._set_progress(0.0, self._from, horizon=self._last)
        if self._step > self._last:  # the last step was saved, and its end was not reported
            self._close("complete", "complete", value=self._curve[-1])
        else:
            self._next()

    def _next(self) -> None:
        instant = self._ready + self._seconds(self._from, self._step)
        self._timer = self._world.timeline.at(instant, self._report)

    def _report(self) -> None:
        world, step = self._world, self._step
        value, now = self._curve[step // self._every - 1], world.timeline.now()
        trained = self._trained()
        new = NewReport(step, value, self._trained_before + trained)
        if value > self._best or now - self._saved_at >= world.cluster.save_every:
            self._save(float(step), None if math.isnan(value) else value, new)
        else:
            world.table.add_reports(self._worker.id, self.grant, [new])
        if value > self._best:
            self._best = value
        if self._unwritten is None:
            world.unwritten_segments.append(self)
        self._unwritten = trained, float(step)
        self._step += self._every
        if step == self._last:
            self._close("complete", "complete", value=value)
        else:
            self._next()
        self._worker.replan()

    def _trained(self) -> float:
        """Seconds of training in this segment until now."""
        return max(0.0, min(self._world.timeline.now(), self._stopped_at) - self._ready)

    def _seconds(self, begin: float, end: float) -> float:
        """Seconds of training from one step to another."""
        if self._clock is None:
            return (end - begin) / self._rate
        return (self._clock.at(end) - self._clock.at(begin)) / self._speed

    def _position(self) -> float:
        if self._clock is None:
            return self._from + self._trained() * self._rate
        return self._clock.reached(self._clock.at(self._from) + self._trained() * self._speed)

    def _save(self, position: float, value: float | None, *reports: NewReport) -> None:
        """Write a checkpoint, together with the report before it, as an agent does."""
        grant, disk = self.grant, self._world.disk
        path = disk.write(position)
        new = Checkpoint(grant.number, grant.fence, int(position), value, path, 1, "simulated")
        for old in self._world.table.add_checkpoint(self._worker.id, grant, new, reports=reports):
            disk.delete(old)
        self._saved, self._saved_at = position, self._world.timeline.now()
        self._has_saved = True

    def write_progress(self) -> None:
        """Write the progress up to the last report, once for any number of reports.

        As in the agent, progress is written before it is read, not with each report.
        """
        if self._unwritten is not None:
            self._set_progress(*self._unwritten)

    def _set_progress(self, trained: float, position: float, horizon: int | None = None) -> None:
        self._unwritten = None
        self._world.table.set_progress(
            self._worker.id,
            self.grant,
            startup=self._ready - self.granted,
            position_from=self._from,
            position_to=position,
            trained=trained,
            horizon=horizon,
        )

    # The ways to end.

    def send_directive(self, directive: Directive) -> None:
        """Follow a directive; a rank that is still starting leaves before its first step.

        One that already leaves does so for the newest reason.
        """
        leaves, self.directive = self.directive.leave, directive
        if leaves or not directive.leave:
            return
        self._cancel()
        now = self._world.timeline.now()
        self._stopped_at = max(now, self._ready)
        left = self._stopped_at + self._world.cluster.stop
        self.stop_seconds = left - now
        self._timer = self._world.timeline.at(left, self._leave)

    def _leave(self) -> None:
        sent = self.directive
        self._set_progress(self._trained(), self._position())
        if sent.kind is Kind.STOP and not sent.deadline:
            self._close("retired", sent.kind.value)
            return
        self._save(self._position(), None)
        self._close("paused", "deadline" if sent.deadline else sent.kind.value)

    def kill(self) -> None:
        """Kill the segment at the deadline."""
        self._close("paused", "deadline")

    def _die(self) -> None:
        """A rank dies; the training since the last checkpoint is lost."""
        deaths = deaths_after(self._failures, saved=self._has_saved)
        state = "failed" if deaths >= MAX_DEATHS else "paused"
        self._count_lost()
        self._close(state, "died", failures=deaths)

    def lose_host(self) -> None:
        """The host is gone: nothing is released, and the lease expires."""
        self._cancel()
        self._add_slot_time()
        self._release_parts()

    def lose_peer_host(self) -> None:
        """Another host of the gang is gone; the training since the last checkpoint is lost."""
        self._die()

    def _count_lost(self) -> None:
        lost = self._seconds(self._saved, max(self._saved, self._position()))
        self._world.slot_time.redone += self.grant.size * lost

    def _release_parts(self) -> None:
        """The remaining members release their slots."""
        for part in self.grant.others:
            if part.worker in self._world.workers:
                self._world.table.release_part(part.worker, self.number, self.grant.fence)

    def _close(
        self, state: str, ended: str, *, value: float | None = None, failures: int = 0
    ) -> None:
        self.write_progress()
        self._cancel()
        self._add_slot_time()
        self._world.table.release(
            self._worker.id,
            self.grant,
            state,
            ended=ended,
            value=value,
            stop=self.stop_seconds,
            failures=failures,
        )
        self._release_parts()
        self._worker.segment_released(self)

    def _add_slot_time(self) -> None:
        held, trained = self._world.timeline.now() - self.granted, self._trained()
        self._world.slot_time.training += self.grant.size * trained
        self._world.slot_time.overhead += self.grant.size * (held - trained)

    def _cancel(self) -> None:
        self._timer.cancel()
        if self._crash is not None:
            self._crash.cancel()
