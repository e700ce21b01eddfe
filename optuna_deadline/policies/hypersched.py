"""HyperSched (Liaw et al., SoCC'19): explore on single slots, then give all to the survivors.

Read in the authors' code and slides: rungs with pausing and retroactive re-checks, promotion from
the top rung down, the entrance gate, the uniform re-dealing in score order, the gain test. What
the code gets wrong is mended here and is our reconstruction: a trial without a report ranks worst,
not best; the gate opens again where survivors are lost; a paused trial comes back with any number
of slots that fits; slots that nobody can use well go to paused trials instead of idling; S(k) and
the overhead are learned from this study.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from optuna_deadline.forecasting.throughput import WORTHWHILE
from optuna_deadline.policies.plan import Order, Pause, Plan, Retire, Run
from optuna_deadline.policies.resources import Resources
from optuna_deadline.policies.rungs import Rung, build_rungs
from optuna_deadline.policies.snapshot import WORST, Snapshot, TrialView


@dataclass(frozen=True)
class HyperSched(Resources):
    """The policy of HyperSched.

    Args:
        min_resource: The first rung, in report steps.
        max_resource: The step at which a trial is done; None takes what the objectives say.
        reduction_factor: Every rung keeps one in this many.
        recharge: A gang grows again only after this many overheads of training.
    """

    recharge: float = 5.0

    def plan(self, snapshot: Snapshot) -> Plan:
        """One plan for the whole study."""
        rungs = build_rungs(snapshot.trials, self.min_resource, self.reduction_factor)
        alive = [trial for trial in snapshot.trials if trial.alive]
        standings = _rank([_stand(trial, rungs) for trial in alive])
        survivors = sorted(
            (s.trial for s in standings if s.trial.running and s.passes), key=_by_score
        )
        others = [s for s in standings if not (s.trial.running and s.passes)]
        orders: dict[int, Order] = {}
        for trial in survivors[snapshot.capacity :]:
            orders[trial.number] = Pause("fewer slots than trials: the best go on")
        survivors = survivors[: snapshot.capacity]
        gate_open = snapshot.time_left > self._entrance_seconds(snapshot)
        if gate_open:
            start = self._explore(snapshot, orders, survivors, others)
        else:
            start = 0
            self._consolidate(snapshot, orders, survivors, others)
        _hold_the_rest(snapshot, orders, others, gate_open)
        return Plan(orders=orders, start=start, gate_open=gate_open)

    def _entrance_seconds(self, snapshot: Snapshot) -> float:
        """Seconds a newcomer needs: ``min(furthest * eta, R * step)`` as on the slides."""
        contenders = [trial for trial in snapshot.trials if trial.state != "failed"]
        furthest = max((trial.trained for trial in contenders), default=0.0)
        paces = [t.step_seconds for t in snapshot.trials if t.step_seconds is not None]
        if not paces:
            return 0.0
        step = median(paces)
        first_report = snapshot.overhead.startup + step * self.min_resource
        catch_up = furthest * self.reduction_factor
        resource = self.last_step(snapshot.trials)
        if resource is not None:
            catch_up = min(catch_up, resource * step)
        return max(first_report, catch_up)

    def _explore(
        self,
        snapshot: Snapshot,
        orders: dict[int, Order],
        survivors: Sequence[TrialView],
        others: Sequence[Standing],
    ) -> int:
        """One slot each; free slots go to promotable paused trials, then to new ones."""
        for trial in survivors:
            orders[trial.number] = Run(1, _moves(trial, 1, "exploring on single slots"))
        free = snapshot.capacity - len(survivors)
        for standing in others:
            if standing.trial.running:
                orders[standing.trial.number] = Pause(standing.words)
            elif standing.passes and free > 0:
                orders[standing.trial.number] = Run(1, standing.words)
                free -= 1
        return free

    def _consolidate(
        self,
        snapshot: Snapshot,
        orders: dict[int, Order],
        survivors: Sequence[TrialView],
        others: Sequence[Standing],
    ) -> None:
        """Deal the slots to the survivors; what they cannot use goes to the best of the others."""
        sizes = _useful(snapshot)
        shares = _deal(snapshot, sizes, len(survivors))
        moves = [
            self._resize(snapshot, sizes, trial, share)
            for trial, share in zip(survivors, shares, strict=True)
        ]
        excess = sum(move.slots for move in moves) - snapshot.capacity
        for index in reversed(range(len(moves))):  # somebody grows: the others go to their shares
            if excess > 0 and moves[index].slots > shares[index]:
                excess -= moves[index].slots - shares[index]
                words = _moves(survivors[index], shares[index], "its share of the pool")
                moves[index] = Move(shares[index], words)
        for trial, move in zip(survivors, moves, strict=True):
            orders[trial.number] = Run(move.slots, move.words)
        free = snapshot.capacity - sum(move.slots for move in moves)
        growing = any(move.held_back for move in moves)
        for standing in others:
            trial = standing.trial
            if free > 0 and trial.running:
                words = _moves(trial, 1, "nobody above it can use the slot")
                orders[trial.number] = Run(1, words)
                free -= 1
            elif free > 0 and not growing:
                orders[trial.number] = Run(1, standing.words)
                free -= 1
            elif trial.running:
                orders[trial.number] = Pause(standing.words)

    def _resize(
        self, snapshot: Snapshot, sizes: Sequence[int], trial: TrialView, share: int
    ) -> Move:
        """Grow where the gain outweighs the restart; else keep as much as is of use."""
        if share <= trial.slots:
            keep = max(size for size in sizes if size <= trial.slots)
            return Move(keep, _moves(trial, keep, "its share of the pool"))
        left, lost = snapshot.time_left, snapshot.overhead.total
        speedup = snapshot.speedup
        gain = speedup(share) * (left - lost) / (left * speedup(trial.slots)) if left else 0.0
        if gain <= WORTHWHILE:
            words = f"growing to {share} would gain {gain:.2f}x after {lost:.1f} s overhead"
            return Move(trial.slots, _moves(trial, trial.slots, words))
        if snapshot.now - trial.changed < self.recharge * lost:
            words = _moves(trial, trial.slots, f"grows to {share} after a while")
            return Move(trial.slots, words, held_back=True)
        part = left / max(snapshot.deadline - snapshot.started, 1e-9)
        words = f"{part:.0%} of the time left, gain {gain:.1f}x after {lost:.1f} s overhead"
        return Move(share, _moves(trial, share, words))


@dataclass(frozen=True)
class Move:
    """What becomes of one survivor's slots."""

    slots: int
    words: str
    held_back: bool = False  #: it would grow, but its last change was too short ago


@dataclass(frozen=True)
class Standing:
    """Where a trial stands: its highest rung, what it recorded there, whether it passes all."""

    trial: TrialView
    milestone: int
    recorded: float
    passes: bool
    words: str


def _stand(trial: TrialView, rungs: Sequence[Rung]) -> Standing:
    reached = [rung for rung in rungs if trial.number in rung.recorded]
    if not reached:
        words = "starts: a free slot" if trial.state == "ready" else "resumes: not yet judged"
        return Standing(trial, 0, WORST, True, words)
    top = reached[-1]
    recorded = top.recorded[trial.number]
    failed = next((rung for rung in reversed(reached) if not rung.passed(trial.number)), None)
    if failed is None:
        words = f"resumes: stands above the cut of rung {top.milestone}"
    elif trial.running:
        mine, cut = abs(failed.recorded[trial.number]), abs(failed.cutoff or 0.0)
        words = f"below the cut of rung {failed.milestone}: {mine:.4g} against {cut:.4g}"
    else:
        words = "resumes: the best of those that wait for a slot nobody else can use"
    return Standing(trial, top.milestone, recorded, failed is None, words)


def _rank(standings: Sequence[Standing]) -> list[Standing]:
    """The most deserving first: those that pass from the top rung down, then the others."""
    return sorted(
        standings, key=lambda s: (not s.passes, -s.milestone, -s.recorded, s.trial.number)
    )


def _hold_the_rest(
    snapshot: Snapshot,
    orders: dict[int, Order],
    others: Sequence[Standing],
    gate_open: bool,
) -> None:
    """The best paused trials stay; the others can no longer win and slow every Optuna call."""
    kept = 4 * snapshot.capacity + 8 if gate_open else 2 * snapshot.capacity
    rest = [s.trial for s in others if s.trial.number not in orders]
    for trial in rest[:kept]:
        orders[trial.number] = Pause("waits: others stand above it")
    for trial in rest[kept:]:
        orders[trial.number] = Retire("cannot win any more: too many stand above it")


def _by_score(trial: TrialView) -> tuple[float, int]:
    return (-trial.last_score, trial.number)


def _useful(snapshot: Snapshot) -> list[int]:
    return snapshot.speedup.useful(min(snapshot.capacity, snapshot.largest_gang))


def _deal(snapshot: Snapshot, sizes: Sequence[int], survivors: int) -> list[int]:
    """One slot each, then round by round in score order, up to what a gang can use."""
    shares = [1] * survivors
    left = snapshot.capacity - survivors
    while left > 0:
        before = left
        for index in range(survivors):
            larger = next((size for size in sizes if size > shares[index]), None)
            if larger is not None and larger - shares[index] <= left:
                left -= larger - shares[index]
                shares[index] = larger
        if left == before:
            break
    return shares


def _moves(trial: TrialView, slots: int, why: str) -> str:
    """How a running trial's number of slots changes, if it does, in words."""
    if slots == trial.slots:
        return f"keeps {slots}: {why}"
    return f"{'grows' if slots > trial.slots else 'shrinks'} {trial.slots} -> {slots}: {why}"
