"""Hermes (Son et al., Electronics 10(3) 350, 2021): more trials than slots, the quick ones first.

Hermes time-shares GPUs between the trials of a study and gives priority to those that converge
quickly early in their training; a preempted trial is checkpointed and loses nothing. That much is
in our sources. The formula of convergence, the length of a turn, the margin, the ageing and how
many trials are let in are our reconstruction, explained in ``docs/policies/hermes.md``.

Signals of convergence: how promising a trial's curve looks, by five simple rules.

Hermes favours trials that converge quickly early in their training. Its formula is not in our
sources: all five are our reconstruction, and which is the default was decided by measurement
(``docs/policies/hermes.md``). Scores are larger the better, so a falling loss is a rising score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies.api import WORST, Order, Plan, Report, Retire, Snapshot, TrialView
from optuna_deadline.policies.base import SlotCandidate, alive, one_slot_each, running_first
from optuna_deadline.policies.baselines.time_sharing import TimeShared, waited
from optuna_deadline.policies.gang_sizes import share_out

#: Reports, the length of the window, the score before any training.
Signal = Callable[[Sequence[Report], int, float], float]


def slope(reports: Sequence[Report], window: int, origin: float) -> float:
    """The gain per step over the last ``window`` reports."""
    last, before = reports[-1], reports[max(0, len(reports) - 1 - window)]
    return (last.score - before.score) / max(1, last.step - before.step)


def relative_slope(reports: Sequence[Report], window: int, origin: float) -> float:
    """The same by all that was gained so far."""
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
    """All that was gained so far."""
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
    """The signal of each trial that has reported; one that has diverged has the worst of all.

    Where a curve begins is not reported: the first report comes after some training, which took
    the quick ones far already. The trials of a study share a metric, so the score before training
    is taken to be the lowest first report of them all.

    Args:
        trials: All trials, also those that have ended.
        signal: One of :data:`SIGNALS`.
        window: In reports.
        own_origin: Take each trial's own first report for its beginning instead.
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
    """Signals made comparable, whatever their scale: 0 is the median, 1 the best.

    Attributes:
        places: By trial, from -1 to 1.
        outliers: By trial, how many robust standard deviations it is above the median.
    """

    places: dict[int, float]
    outliers: dict[int, float]

    @classmethod
    def of(cls, signals: dict[int, float]) -> NormalizedSignals:
        """Of the signals of all trials, also of those that have ended."""
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


#: Switches that a newcomer's warm-up is worth at least, and its fewest reports.
_WORTH, _FEWEST = 4.0, 2

#: So many robust standard deviations above the median a trial stands out, of this many seen.
_OUTSTANDING, _SEEN = 3.0, 4


@dataclass(frozen=True)
class Hermes(TimeShared):
    """The policy of Hermes; every trial has one slot as long as there are trials for all slots.

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
        trials = alive(snapshot)
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
        """Whether a trial has not been trained long enough to be compared."""
        if self.warm_up is not None:
            return len(trial.reports) < self.warm_up
        worth = _WORTH * snapshot.overhead.total
        return len(trial.reports) < _FEWEST or trial.trained < worth

    def _give_up(self, snapshot: Snapshot, claims: Sequence[SlotCandidate]) -> dict[int, Order]:
        """With too little time for newcomers there is too little for the last in the queue."""
        kept = 2 * snapshot.capacity
        return {c.trial.number: Retire("too many trials rank above it") for c in claims[kept:]}


@dataclass(frozen=True)
class _Ranking:
    """The living trials in the order in which they are served."""

    policy: Hermes
    snapshot: Snapshot
    signals: NormalizedSignals
    in_time: bool  #: newcomers, and so those that were long without a turn, still have time
    quantum: float  #: seconds of a turn
    in_turn: set[int]

    def sort(
        self, trials: Sequence[TrialView]
    ) -> tuple[list[SlotCandidate], list[SlotCandidate], list[SlotCandidate]]:
        """Trials that stay or start, those that continue before any new trial, and the others."""
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
        """Whether a seasoned trial cannot be preempted now."""
        if not trial.running:
            return False
        turn = self.quantum + self.snapshot.overhead.total
        if self.snapshot.time_left < turn:
            return True  # no other trial could use the slot as well
        # The first turn is the warm-up: it ends as soon as the trial can be compared.
        first = trial.trained <= self.snapshot.now - trial.changed
        return not first and trial.number in self.in_turn

    def _merit(self, trial: TrialView) -> float:
        bonus = self.policy.margin if trial.running else 0.0
        return self.signals.places.get(trial.number, -1.0) + bonus

    def _priority(self, trial: TrialView) -> float:
        """The merit, and what waiting adds to it."""
        return self._merit(trial) + self._aged(trial)

    def _aged(self, trial: TrialView) -> float:
        """A median trial comes level with the best after ``ageing`` rounds of turns."""
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
