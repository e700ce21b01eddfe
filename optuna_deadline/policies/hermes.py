"""Hermes (Son et al., Electronics 10(3) 350, 2021): time-sharing, fast-converging trials first.

Hermes time-shares GPUs between the trials of a study and gives priority to those that converge
fast early in their training; a preempted trial is checkpointed and loses nothing. Our sources
contain no more. The formula of convergence, the length of a turn, the margin, the ageing and the
number of open trials are our reconstruction, explained in ``docs/policies/hermes.md``.

Five signals of convergence are implemented; the default was chosen by measurement. Scores are
larger-is-better, so a falling loss is a rising score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies.api import WORST, Order, Plan, Report, Retire, Snapshot, TrialView
from optuna_deadline.policies.base import SlotCandidate, one_slot_each, running_first
from optuna_deadline.policies.baselines.time_sharing import TimeShared, waited
from optuna_deadline.policies.gang_sizes import share_out

#: Reports, the length of the window, the score before any training.
Signal = Callable[[Sequence[Report], int, float], float]


def slope(reports: Sequence[Report], window: int, origin: float) -> float:
    """The gain per step over the last ``window`` reports."""
    last, before = reports[-1], reports[max(0, len(reports) - 1 - window)]
    return (last.score - before.score) / max(1, last.step - before.step)


def relative_slope(reports: Sequence[Report], window: int, origin: float) -> float:
    """The speed relative to the total gain so far."""
    best = max(report.score for report in reports)
    lost = best - min(origin, reports[0].score)
    return slope(reports, window, origin) / lost if lost > 0 else 0.0


def mean_speed(reports: Sequence[Report], window: int, origin: float) -> float:
    """The gain per step since the beginning."""
    return (reports[-1].score - origin) / _steps(reports, reports[-1])


def early_speed(reports: Sequence[Report], window: int, origin: float) -> float:
    """The gain per step over the first ``window`` reports, which never changes afterwards."""
    last = reports[min(window, len(reports)) - 1]
    return (last.score - origin) / _steps(reports, last)


def gain(reports: Sequence[Report], window: int, origin: float) -> float:
    """The total gain so far."""
    return reports[-1].score - origin


def _steps(reports: Sequence[Report], last: Report) -> int:
    return last.step - reports[0].step + 1


SIGNALS: dict[str, Signal] = {
    "slope": slope,
    "relative_slope": relative_slope,
    "mean_speed": mean_speed,
    "early_speed": early_speed,
    "gain": gain,
}


def read_signals(
    trials: Sequence[TrialView], signal: str, window: int, own_origin: bool = False
) -> dict[int, float]:
    """The signal of each trial that has reported; the worst for a diverged one.

    The beginning of a curve is not reported: the first report comes after some training, in which
    fast trials have already gained much. The trials of a study share a metric, so the score before
    training is taken to be the lowest first report of all.

    Args:
        trials: All trials, including those that have ended.
        signal: One of :data:`SIGNALS`.
        window: In reports.
        own_origin: Use each trial's own first report as its beginning instead.
    """
    judged = [trial for trial in trials if trial.reports and trial.state != "failed"]
    firsts = [trial.reports[0].score for trial in judged]
    lowest = min((score for score in firsts if math.isfinite(score)), default=0.0)
    found = {}
    for trial in judged:
        origin = trial.reports[0].score if own_origin else lowest
        value = WORST
        if math.isfinite(trial.last_score):
            value = SIGNALS[signal](trial.reports, window, origin)
        found[trial.number] = value if math.isfinite(value) else WORST
    return found


@dataclass(frozen=True)
class NormalizedSignals:
    """Signals on one scale: 0 is the median, 1 the best.

    Attributes:
        places: By trial, from -1 to 1.
        outliers: By trial, how many robust standard deviations it is above the median.
    """

    places: dict[int, float]
    outliers: dict[int, float]

    @classmethod
    def of(cls, signals: dict[int, float]) -> NormalizedSignals:
        """From the signals of all trials, including those that have ended."""
        finite = [value for value in signals.values() if value > WORST]
        if not finite:
            return cls(dict.fromkeys(signals, -1.0), dict.fromkeys(signals, 0.0))
        middle, best = median(finite), max(finite)
        # The median deviation of normal values is 0.6745 standard deviations.
        deviation = median(abs(value - middle) for value in finite) / 0.6745
        places, outliers = {}, {}
        for number, value in signals.items():
            above = value - middle
            places[number] = max(-1.0, above / (best - middle)) if best > middle else 0.0
            if value == WORST:
                places[number] = -1.0
            outliers[number] = above / deviation if deviation > 0 else 0.0
        return cls(places, outliers)


#: The least value of a newcomer's warm-up in switches, and its fewest reports.
_WORTH, _FEWEST = 4.0, 2

#: An outlier is this many robust standard deviations above the median, of at least this many.
_OUTSTANDING, _SEEN = 3.0, 4


@dataclass(frozen=True)
class Hermes(TimeShared):
    """The policy of Hermes; each trial has one slot while there are trials for all slots.

    Args:
        quantum: See :class:`TimeShared`.
        open_per_slot: See :class:`TimeShared`.
        signal: How convergence is read from a curve, one of :data:`SIGNALS`.
        own_origin: Measure gains from a trial's own first report, not from the study's lowest.
        warm_up: Reports that a newcomer makes before it is compared; None for two,
            and for four times the cost of a switch at least.
        margin: How much better a waiting trial must be to displace one that trains, as a share
            of the distance from the median to the best.
        ageing: One turn in about this many goes to the trial that waited longest.
        explore: The share of the slots that newcomers may take from trials that do not stand out.
    """

    signal: str = "gain"
    own_origin: bool = False
    warm_up: int | None = None
    margin: float = 0.1
    ageing: float = 10.0
    explore: float = 0.75

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.signal not in SIGNALS:
            known = ", ".join(SIGNALS)
            raise DeadlineError(f"There is no signal {self.signal!r}; there are {known}.")
        if self.warm_up is not None and self.warm_up < 1:
            raise DeadlineError(f"warm_up must be a number from 1, but got {self.warm_up!r}.")
        if not self.margin >= 0 or not self.ageing > 0 or not 0 < self.explore <= 1:
            raise DeadlineError(
                "margin must not be negative, ageing must be above 0 and explore between 0 and 1."
            )

    def plan(self, snapshot: Snapshot) -> Plan:
        """Order trials: those in their turn, leaders, new trials, then the others."""
        trials = snapshot.alive
        in_time = self.in_time(snapshot, _WORTH * snapshot.overhead.total)
        newcomers = self.room(snapshot) if in_time else 0
        gate_open = in_time and self.trials_left_to_open(snapshot) != 0
        if not newcomers and len(trials) < snapshot.capacity:
            held = bool(self.in_turn(snapshot))
            return Plan(orders=share_out(snapshot, trials, held), gate_open=gate_open)
        window = max(_FEWEST, self.warm_up or 0)
        signals = read_signals(snapshot.trials, self.signal, window, self.own_origin)
        quantum, in_turn = self.quantum_seconds(snapshot), self.in_turn(snapshot)
        ranking = _Ranking(
            self, snapshot, NormalizedSignals.of(signals), in_time, quantum, in_turn
        )
        staying, leading, others = ranking.sort(trials)
        claims = [*staying, *leading]
        if newcomers:
            plan = one_slot_each(snapshot, claims, newcomers=newcomers, leftovers=others)
        else:
            claims += others
            orders = {} if in_time else self._give_up(snapshot, claims)
            claims = [claim for claim in claims if claim.trial.number not in orders]
            plan = one_slot_each(snapshot, claims, orders, newcomers=0)
        return replace(plan, gate_open=gate_open)

    def is_fresh(self, snapshot: Snapshot, trial: TrialView) -> bool:
        """Whether a trial has not trained long enough to be compared."""
        if self.warm_up is not None:
            return len(trial.reports) < self.warm_up
        worth = _WORTH * snapshot.overhead.total
        return len(trial.reports) < _FEWEST or trial.trained < worth

    def _give_up(self, snapshot: Snapshot, claims: Sequence[SlotCandidate]) -> dict[int, Order]:
        """Retire the last of the queue if there is too little time for newcomers."""
        kept = 2 * snapshot.capacity
        return {c.trial.number: Retire("too many trials rank above it") for c in claims[kept:]}


@dataclass(frozen=True)
class _Ranking:
    """The live trials in the order of service."""

    policy: Hermes
    snapshot: Snapshot
    signals: NormalizedSignals
    in_time: bool  #: whether newcomers, and so trials that waited long, still have time
    quantum: float  #: seconds of a turn
    in_turn: set[int]

    def sort(
        self, trials: Sequence[TrialView]
    ) -> tuple[list[SlotCandidate], list[SlotCandidate], list[SlotCandidate]]:
        """Sort trials: those that stay or start, those before any new trial, and the others."""
        fresh: list[TrialView] = []
        seasoned: list[TrialView] = []
        for trial in trials:
            is_fresh = self.policy.is_fresh(self.snapshot, trial)
            (fresh if is_fresh else seasoned).append(trial)
        seasoned.sort(key=lambda trial: (-self._priority(trial), trial.number))
        claims = [SlotCandidate(t, "its turn has not ended") for t in seasoned if self._stays(t)]
        claims += [SlotCandidate(trial, "its warm-up") for trial in running_first(fresh)]
        claims.sort(key=lambda claim: not claim.trial.running)
        rest = [trial for trial in seasoned if not self._stays(trial)]
        leaders = self._leaders(seasoned)
        return (
            claims,
            [
                SlotCandidate(trial, "converges fastest")
                for trial in rest
                if trial.number in leaders
            ],
            [
                SlotCandidate(trial, self._words(trial))
                for trial in rest
                if trial.number not in leaders
            ],
        )

    def _stays(self, trial: TrialView) -> bool:
        """Whether a warmed-up trial cannot be preempted now."""
        if not trial.running:
            return False
        turn = self.quantum + self.snapshot.overhead.total
        if self.snapshot.time_left < turn:
            return True  # no other trial could use the slot better
        # The first turn is the warm-up: it ends as soon as the trial can be compared.
        first = trial.trained <= self.snapshot.now - trial.changed
        return not first and trial.number in self.in_turn

    def _merit(self, trial: TrialView) -> float:
        bonus = self.policy.margin if trial.running else 0.0
        return self.signals.places.get(trial.number, -1.0) + bonus

    def _priority(self, trial: TrialView) -> float:
        """The signal plus a bonus for waiting."""
        return self._merit(trial) + self._aged(trial)

    def _aged(self, trial: TrialView) -> float:
        """A median trial reaches the priority of the best after ``ageing`` rounds of turns."""
        if not self.in_time:
            return 0.0
        one_round = self.quantum * self.policy.open_per_slot
        return waited(self.snapshot, trial) / (self.policy.ageing * one_round)

    def _leaders(self, seasoned: Sequence[TrialView]) -> set[int]:
        """Trials that no new trial displaces: the best, for some of the slots, and outliers."""
        capacity = self.snapshot.capacity
        kept = capacity - math.ceil(self.policy.explore * capacity)
        best = sorted(seasoned, key=lambda trial: (-self._merit(trial), trial.number))
        leaders = {trial.number for trial in best[:kept]}
        if len(self.signals.outliers) >= _SEEN:
            leaders |= {trial.number for trial in seasoned if self._stands_out(trial)}
        return leaders

    def _stands_out(self, trial: TrialView) -> bool:
        needed = _OUTSTANDING * (1 - self.policy.margin if trial.running else 1.0)
        return self.signals.outliers[trial.number] > needed

    def _words(self, trial: TrialView) -> str:
        if self._aged(trial) > self.policy.margin:
            return "waited longest for a turn"
        return "converges faster than the waiting trials"
