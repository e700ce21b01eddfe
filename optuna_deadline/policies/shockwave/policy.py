"""Shockwave's market on one study: its trials are the jobs.

Our reconstruction throughout: the paper shares a cluster among jobs that will all be trained to
their ends, and prunes none. So this policy suits a study whose trials all matter (a sweep, an
ensemble); one that looks for a single best model does better with a policy that gives trials up.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from optuna_deadline.policies.api import Order, Pause, Plan, Run, Snapshot, TrialView
from optuna_deadline.policies.base import Resources, alive
from optuna_deadline.policies.gang_sizes import growth_pays, uniform
from optuna_deadline.policies.shockwave.program import slope

#: Steps assumed for a whole training until a trial reports its length.
_UNKNOWN = 100

#: Gangs grow only when nothing has changed for so many restarts.
_REST = 5.0


@dataclass(frozen=True)
class ShockwaveStudy(Resources):
    """Equal trials buy slots; log of progress per second of work; new trials while they can end.

    A slot goes to the trial whose logarithm of progress gains most in the next second, so the
    young come first and none is left behind. A running trial continues unless another one gains
    twice as much. New trials start on free slots as long as a whole training fits before the
    deadline; from then on free slots make gangs larger where S(k) pays.

    Args:
        patience: So many times as much must a waiting trial gain to take a running one's slot.
    """

    patience: float = 2.0
    ends_no_trial = True

    def plan(self, snapshot: Snapshot) -> Plan:
        """One plan for the whole study."""
        last, pace = self.last_step(snapshot.trials), _pace(snapshot)
        trials = sorted(alive(snapshot), key=lambda trial: self._bid(trial, last, pace))
        chosen, waiting = trials[: snapshot.capacity], trials[snapshot.capacity :]
        orders: dict[int, Order] = {
            trial.number: Pause("waits: other trials gain more from a slot") for trial in waiting
        }
        free = snapshot.capacity - len(chosen)
        known = last is not None and any(trial.step_seconds for trial in snapshot.trials)
        whole = snapshot.overhead.startup + (last or 0) * pace if known else 0.0
        newcomers = self.trials_left_to_open(snapshot)
        gate_open = snapshot.time_left > whole and newcomers != 0
        chosen.sort(key=lambda trial: trial.number)
        sizes = [1] * len(chosen) if gate_open else _grow(snapshot, chosen, free)
        for trial, slots in zip(chosen, sizes, strict=True):
            orders[trial.number] = Run(slots, "its share of the market")
        start = (free if newcomers is None else min(free, newcomers)) if gate_open else 0
        return Plan(
            orders=orders,
            start=start,
            start_reason="a free slot, and enough time for a whole training",
            gate_open=gate_open,
        )

    def _bid(self, trial: TrialView, last: int | None, pace: float) -> tuple[float, int]:
        """The gain of a step by its seconds, negative so that the greatest comes first."""
        whole = last or max(_UNKNOWN, 2 * trial.step)
        gain = slope(trial.step / whole) / whole / (trial.step_seconds or pace)
        return -gain * (self.patience if trial.running else 1.0), trial.number


def _pace(snapshot: Snapshot) -> float:
    """Seconds of a step on one slot, in the middle of the trials."""
    return median([t.step_seconds for t in snapshot.trials if t.step_seconds] or [1.0])


def _grow(snapshot: Snapshot, chosen: list[TrialView], free: int) -> list[int]:
    """Gangs: free slots are dealt out size by size, to those first that are gangs already."""
    useful = snapshot.speedup.useful(min(snapshot.capacity, snapshot.largest_gang))
    turns = sorted(range(len(chosen)), key=lambda index: -chosen[index].slots)
    scores = [chosen[index].last_score for index in turns]
    dealt = dict(zip(turns, uniform(scores, useful, len(chosen) + free), strict=True))
    lull = _REST * snapshot.overhead.total
    rests = any(trial.running and snapshot.now - trial.changed < lull for trial in chosen)
    return [
        min(size, trial.slots or 1) if rests else _keep(snapshot, trial, size)
        for size, trial in ((dealt[index], trial) for index, trial in enumerate(chosen))
    ]


def _keep(snapshot: Snapshot, trial: TrialView, size: int) -> int:
    """The size that a trial has, where growing would not gain what the restart costs."""
    if 0 < trial.slots < size and not growth_pays(snapshot, trial.slots, size):
        return trial.slots
    return size
