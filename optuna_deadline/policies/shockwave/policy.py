"""Shockwave's market (Zheng et al., NSDI 2023) on one study: each trial is trained to its end.

Our reconstruction: the paper's jobs have gangs of their own; here a trial gets the smallest gang
with which it can end when the others can. Nothing is kept from one plan to the next: a running
trial stays for a turn, and fairness is estimated anew from what each trial has trained. The time
left is that of the present regime, and of the changes that other trials have shown: what the
paper's restatement leaves of its predictor once a regime has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import median

import numpy as np

from optuna_deadline.errors import DeadlineError
from optuna_deadline.forecasting.throughput import WORTHWHILE
from optuna_deadline.policies.api import Order, Pause, Plan, Run, Snapshot, TrialView
from optuna_deadline.policies.baselines.time_sharing import TimeShared, step_seconds
from optuna_deadline.policies.shockwave.gangs import gangs_in_time
from optuna_deadline.policies.shockwave.program import (
    Array,
    Programme,
    by_gain,
    check_weights,
    order,
    weight_of,
)

#: Steps assumed for a whole training until a trial reports its length.
_UNKNOWN = 100
#: Restarts' worth of time without a change before a gang changes.
_REST = 5.0


@dataclass(frozen=True)
class _Job:
    """A trial; None is one that is not open yet."""

    trial: TrialView | None
    whole: float  #: seconds of its training on one slot
    left: float

    @property
    def slots(self) -> int:
        return self.trial.slots if self.trial is not None and self.trial.running else 0


@dataclass(frozen=True)
class Shockwave(TimeShared):
    """Trains all trials to their ends: a short makespan, and none waits for long.

    Trials buy turns; a plan for the next turns maximises the sum of the logarithms of their
    progress, heavier for those that are late, less a price for work that keeps the study from
    ending together. Trials that are counted are all part of the market from the beginning. Without
    a count, new ones start on free slots as long as a whole training fits before the deadline.

    Args:
        pressure: The price of a slot's turn beyond the common end, in units of the logarithm.
        exponent: Of the expected rho of a late trial, in its weight.
        window: Turns planned ahead.
        overdue: The expected rho beyond which a trial goes before the plan.

    Raises:
        DeadlineError: A parameter is invalid.
    """

    pressure: float = 10.0
    exponent: float = 12.0
    window: int = 6
    overdue: float = 1.15
    ends_no_trial = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 1:
            raise DeadlineError(f"window must be 1 turn or more, but got {self.window!r}.")
        check_weights(self.pressure, self.exponent, self.overdue)

    def plan(self, snapshot: Snapshot) -> Plan:
        """One plan for the whole study."""
        jobs, whole = self._jobs(snapshot)
        sizes = self._sizes(snapshot, jobs)
        orders: dict[int, Order] = {t.number: Pause("waits for its turn") for t in snapshot.alive}
        for place, size in sizes.items():
            if (trial := jobs[place].trial) is not None:
                orders[trial.number] = Run(size, "its share of the market")
        start = sum(jobs[place].trial is None for place in sizes)
        newcomers = self.trials_left_to_open(snapshot)
        gate_open = newcomers != 0 and snapshot.time_left > whole
        if newcomers is None and gate_open:
            start = snapshot.capacity - sum(sizes.values())
        return Plan(
            orders=orders,
            start=start,
            start_reason="enough time for a whole training",
            gate_open=gate_open,
        )

    def _jobs(self, snapshot: Snapshot) -> tuple[list[_Job], float]:
        """What there is to train, and the seconds of a whole training with its start."""
        last, pace = self.last_step(snapshot.trials), step_seconds(snapshot)
        steps = last or max([_UNKNOWN, *(2 * trial.step for trial in snapshot.trials)])
        jobs = []
        for trial in sorted(snapshot.alive, key=attrgetter("number")):
            left = max(1e-6, trial.seconds_to(steps, pace or 1.0) or 0.0)
            jobs.append(_Job(trial, trial.trained + left, left))
        usual = median([job.whole for job in jobs] or [steps * (pace or 1.0)])
        known = snapshot.overhead.startup + usual if last is not None and pace is not None else 0.0
        newcomers = self.trials_left_to_open(snapshot) if snapshot.time_left > known else 0
        return [*jobs, *[_Job(None, usual, usual)] * (newcomers or 0)], known

    def _sizes(self, snapshot: Snapshot, jobs: Sequence[_Job]) -> dict[int, int]:
        """The slots of the jobs that run: those in their turn, overdue ones, then the plan's."""
        if not jobs or snapshot.capacity < 1:
            return {}
        useful = snapshot.speedup.useful(min(snapshot.capacity, snapshot.largest_gang))
        works = np.array([job.left for job in jobs])
        gangs = gangs_in_time(works, useful, snapshot.speedup, snapshot.capacity)
        rho = self._rho(snapshot, jobs)
        programme = self._programme(snapshot, jobs, works, gangs.astype(float), rho)
        ran = np.array([job.slots > 0 for job in jobs], dtype=bool)
        held = self.in_turn(snapshot)
        turns = [n for n, job in enumerate(jobs) if job.trial and job.trial.number in held]
        overdue = [n for n in np.argsort(-rho, kind="stable").tolist() if rho[n] > self.overdue]
        planned = order(programme, by_gain(programme), ran)[0]
        rest = np.argsort(-programme.left, kind="stable").tolist()
        sizes, free = dict[int, int](), snapshot.capacity
        for place in dict.fromkeys([*turns, *overdue, *planned, *rest]):
            if free:
                sizes[place] = min(_size(snapshot, jobs[place], int(gangs[place])), free)
                free -= sizes[place]
        speedup = snapshot.speedup
        for place in sorted(sizes, key=lambda place: -works[place] / speedup(sizes[place])):
            larger = max(size for size in useful if size <= sizes[place] + free)
            if jobs[place].trial is not None and larger > sizes[place]:
                free += sizes[place]
                sizes[place] = max(sizes[place], _size(snapshot, jobs[place], larger))
                free -= sizes[place]
        return sizes

    def _rho(self, snapshot: Snapshot, jobs: Sequence[_Job]) -> Array:
        """The expected finish time of each job by the fair one, which equal shares would give."""
        everyone = max(1.0, max(self.n_trials or 0, len(jobs)) / snapshot.capacity)
        present = max(1.0, len(jobs) / snapshot.capacity)
        waited = snapshot.now - snapshot.started
        shortest = min(job.whole for job in jobs)  # a trial that is not open may be as short
        pairs = [(job.left, job.whole) if job.trial else (shortest, shortest) for job in jobs]
        return np.array([(waited + left * present) / (whole * everyone) for left, whole in pairs])

    def _programme(
        self, snapshot: Snapshot, jobs: Iterable[_Job], works: Array, gangs: Array, rho: Array
    ) -> Programme:
        turn = self.quantum_seconds(snapshot) + snapshot.overhead.total
        wholes = np.array([job.whole for job in jobs])
        speeds = np.array([snapshot.speedup(int(size)) for size in gangs])
        pairs = zip(works, rho, strict=True)
        weights = [weight_of(late, left < turn, self.exponent) for left, late in pairs]
        return Programme(
            gangs=gangs,
            weights=np.array(weights),
            progress=1.0 - works / wholes,
            step=turn * speeds / wholes,
            left=works / speeds / turn,
            gpus=snapshot.capacity,
            rounds=self.window,
            pressure=self.pressure,
        )


def _size(snapshot: Snapshot, job: _Job, gang: int) -> int:
    """A new trial starts on one slot, a running one grows if that pays, and none shrinks."""
    if job.trial is None:
        return 1
    if not job.slots:
        return gang
    rest = _REST * snapshot.overhead.total
    kept = min(job.slots, snapshot.capacity, snapshot.largest_gang)
    now, then = (job.left / snapshot.speedup(size) for size in (kept, gang))
    pays = now > WORTHWHILE * (then + snapshot.overhead.total)
    return gang if pays and snapshot.now - job.trial.changed >= rest else kept
