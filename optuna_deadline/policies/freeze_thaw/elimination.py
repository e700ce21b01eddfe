"""Who goes on: trials ranked rung by rung, as many of them let go on as a course has room for.

How far ranks can be trusted, learned from the study: do those that lead at a rung lead later?

Where schedules drop late or warm up long, the order at a rung says little about the end, and
whoever stops by it stops the best. So the better half of each rung is looked at again at the next:
the correlation of their ranks is the trust in all rungs. Only the better half counts, since
telling the hopeless from the others is easy everywhere and helps nobody to choose among the good.
PASHA (Bohdal et al., ICLR 2023) learns from such agreement when to stop; that it says how many a
rung lets go on is ours.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from statistics import NormalDist

from optuna_deadline.policies.api import WORST, TrialView
from optuna_deadline.policies.base import SlotCandidate
from optuna_deadline.policies.freeze_thaw.schedule import HalvingSchedule
from optuna_deadline.policies.trial_index import TrialIndex


@dataclass(frozen=True)
class TrialQueue:
    """All living trials, in the order in which slots are theirs.

    Attributes:
        going: On their way to a rung, the lowest first: a rung is known once all came to it.
        early: The next ones of a rung that somebody has yet to come to: they go on if nobody
            better comes, and meanwhile where a slot is free.
        waiting: The others, the furthest and best first.
    """

    going: list[SlotCandidate]
    early: list[SlotCandidate]
    waiting: list[TrialView]


def pairs_at(
    view: TrialIndex, rungs: tuple[int, ...], trials: Sequence[TrialView]
) -> list[list[tuple[float, float | None]]]:
    """For each rung but the last, what those that came there had there and at the next."""
    found: list[list[tuple[float, float | None]]] = [[] for _ in rungs[1:]]
    for trial in trials:
        came = best_by_rung(view, rungs, trial)
        for pairs, (here, there) in zip(found, zip_longest(came, came[1:]), strict=False):
            pairs.append((here, there))
    return found


def queue_trials(
    view: TrialIndex, course: HalvingSchedule, opened: Sequence[TrialView]
) -> TrialQueue:
    """Where all trials stand.

    As long as a rung waits for some, it lets go on the same share of those that have come: they
    need not wait for the slowest, and too many go on only as far as the early ones were better.
    """
    going: list[SlotCandidate] = []
    early: list[SlotCandidate] = []
    members = list(opened)
    last = len(course.rungs) - 1
    for place, (rung, count) in enumerate(zip(course.rungs, course.counts, strict=True)):
        behind = [trial for trial in members if trial.alive and trial.step < rung]
        words = f"on its way to rung {rung}"
        going += [SlotCandidate(trial, words) for trial in _running_first(behind)]
        if place == last:
            break
        came = [trial for trial in members if trial.step >= rung or trial.state == "complete"]
        room = course.counts[place + 1]
        due = room if len(came) >= count else len(came) * room // count
        ranked = _ranked(view, course.rungs, place, came)
        words = f"among the best of rung {rung} so far"
        if place < course.undecided:
            decides = course.rungs[course.undecided]
            ranked.sort(key=lambda trial: (trial.step < decides, trial.number))
            words = f"by lot: ranks before rung {decides} mislead"
        above = course.rungs[place + 1]
        members = ranked[:due]
        members += [trial for trial in ranked[due:] if _stays_in(trial, rung, above, course)]
        kept = {trial.number for trial in members}
        others = [trial for trial in ranked[due:room] if trial.number not in kept]
        early += [SlotCandidate(t, words) for t in others if t.alive and t.step < above]
    placed = {claim.trial.number for claim in (*going, *early)}
    rest = [trial for trial in opened if trial.alive and trial.number not in placed]
    return TrialQueue(
        going, early, sorted(rest, key=lambda trial: _rank_key(view, course.rungs, trial))
    )


def _stays_in(trial: TrialView, rung: int, above: int, course: HalvingSchedule) -> bool:
    """Whether it goes on from a rung though others stand above it there.

    Who trains beyond it gets to the next one, where there is time for that: to change its mind
    halfway would cost a stop, a start and what was trained. And where fewer go on than once could,
    who has come to the next rung is judged there: that says more, and costs nothing.
    """
    came = trial.step >= above or trial.state == "complete"
    return (came and course.narrowed) or (course.finishes and trial.running and trial.step > rung)


def _running_first(trials: Sequence[TrialView]) -> list[TrialView]:
    """Who trains goes on; among the others the order stays."""
    return sorted(trials, key=lambda trial: not trial.running)


def _ranked(
    view: TrialIndex, rungs: tuple[int, ...], place: int, came: Sequence[TrialView]
) -> list[TrialView]:
    """Those that can go on from a rung or have come to their end, the best first."""
    scores = {t.number: _score(view, rungs, place, t) for t in came if t.state != "retired"}
    able = [trial for trial in came if scores.get(trial.number, WORST) > WORST]
    return sorted(able, key=lambda trial: (-scores[trial.number], trial.number))


def _rank_key(
    view: TrialIndex, rungs: tuple[int, ...], trial: TrialView
) -> tuple[int, float, int]:
    place = len(best_by_rung(view, rungs, trial)) - 1
    return -place, -_score(view, rungs, place, trial), trial.number


def _score(view: TrialIndex, rungs: tuple[int, ...], place: int, trial: TrialView) -> float:
    """The best score until a rung; who ended before it counts with what it ended with."""
    came = best_by_rung(view, rungs, trial)
    if place < len(came):
        return came[place]
    return trial.best_score


def best_by_rung(view: TrialIndex, rungs: tuple[int, ...], trial: TrialView) -> tuple[float, ...]:
    """The best score until each rung that a trial has come to."""

    def work_out(trial: TrialView) -> tuple[float, ...]:
        best = list(accumulate([report.score for report in trial.reports], max))
        steps = [report.step for report in trial.reports]
        places = [bisect_left(steps, rung) for rung in rungs if rung <= trial.step]
        return tuple([best[place] for place in places])

    return view.cached_by_reports(trial, ("bests", rungs), work_out)


#: What is taken for the agreement before anything is seen: that between the rungs 1, 3, 9, 30 of
#: the project's own recording. It weighs as much as so many trials.
PRIOR, _WEIGHT = 0.76, 20
#: So many are let go on that the best of twenty at the next rung is among them, nine times in ten.
_BEST = NormalDist().inv_cdf(1 - 0.5 / 20)
_SURE = NormalDist().inv_cdf(0.9)
_FEWEST = 3  # pairs without which a rung says nothing


def rank_correlation(rungs: Sequence[Sequence[tuple[float, float | None]]]) -> float:
    """The rank correlation from a rung to the next among the better half, over all rungs.

    Args:
        rungs: For each rung but the last, by trial that came there: its score there and at the
            next rung, None where it has not come so far.

    Returns:
        From 0, where the order there says nothing, to 1.
    """
    weight, total = float(_WEIGHT), _WEIGHT * PRIOR
    for scores in rungs:
        ranked = sorted(scores, key=lambda pair: -pair[0])
        better = ranked[: max(_FEWEST, -(-len(ranked) // 2))]
        pairs = [(here, there) for here, there in better if there is not None]
        if len(pairs) >= _FEWEST:
            weight += len(pairs)
            total += len(pairs) * _correlation(pairs)
    return max(0.0, total / weight)


def share_kept(trust: float, reduction_factor: int) -> float:
    """The share of a rung that goes on: one in the reduction factor, or more where it must be.

    Ranks are taken for normal scores with the correlation ``trust``. The best of twenty later has
    the score ``z`` there, so it stands above ``trust * z - 1.28 * sqrt(1 - trust ** 2)`` now with
    a probability of .9; the share is what is above that.
    """
    stands = trust * _BEST - _SURE * math.sqrt(1 - trust**2)
    return max(1 / reduction_factor, 1 - NormalDist().cdf(stands))


def _correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Of normal scores; 0 where all stand level."""
    here = _normal_scores([pair[0] for pair in pairs])
    there = _normal_scores([pair[1] for pair in pairs])
    spread = math.sqrt(sum(x * x for x in here) * sum(y * y for y in there))
    if spread < 1e-9:
        return 0.0
    return sum(x * y for x, y in zip(here, there, strict=True)) / spread


def _normal_scores(values: Sequence[float]) -> list[float]:
    """What a normal sample of that size would have at the same ranks; who is level shares one."""
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values)):
        places.setdefault(value, []).append(place)
    score: Callable[[float], float] = NormalDist().inv_cdf
    scores = {
        value: score((sum(level) / len(level) + 0.5) / len(values))
        for value, level in places.items()
    }
    return [scores[value] for value in values]
