"""Who goes on: trials ranked rung by rung, as many of them let go on as a course has room for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest

from optuna_deadline.policies.freeze_thaw.schedule import Course
from optuna_deadline.policies.single import Claim
from optuna_deadline.policies.snapshot import WORST, TrialView
from optuna_deadline.policies.trial_index import Overview


@dataclass(frozen=True)
class Line:
    """All living trials, in the order in which slots are theirs.

    Attributes:
        going: On their way to a rung, the lowest first: a rung is known once all came to it.
        early: The next ones of a rung that somebody has yet to come to: they go on if nobody
            better comes, and meanwhile where a slot is free.
        waiting: The others, the furthest and best first.
    """

    going: list[Claim]
    early: list[Claim]
    waiting: list[TrialView]


def pairs_at(
    view: Overview, rungs: tuple[int, ...], trials: Sequence[TrialView]
) -> list[list[tuple[float, float | None]]]:
    """For each rung but the last, what those that came there had there and at the next."""
    found: list[list[tuple[float, float | None]]] = [[] for _ in rungs[1:]]
    for trial in trials:
        came = bests(view, rungs, trial)
        for pairs, (here, there) in zip(found, zip_longest(came, came[1:]), strict=False):
            pairs.append((here, there))
    return found


def line_up(view: Overview, course: Course, opened: Sequence[TrialView]) -> Line:
    """Where all trials stand.

    As long as a rung waits for some, it lets go on the same share of those that have come: they
    need not wait for the slowest, and too many go on only as far as the early ones were better.
    """
    going: list[Claim] = []
    early: list[Claim] = []
    members = list(opened)
    last = len(course.rungs) - 1
    for place, (rung, count) in enumerate(zip(course.rungs, course.counts, strict=True)):
        behind = [trial for trial in members if trial.alive and trial.step < rung]
        words = f"on its way to rung {rung}"
        going += [Claim(trial, words) for trial in _running_first(behind)]
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
        members += [trial for trial in ranked[due:] if _stays(trial, rung, above, course)]
        kept = {trial.number for trial in members}
        others = [trial for trial in ranked[due:room] if trial.number not in kept]
        early += [Claim(t, words) for t in others if t.alive and t.step < above]
    placed = {claim.trial.number for claim in (*going, *early)}
    rest = [trial for trial in opened if trial.alive and trial.number not in placed]
    return Line(going, early, sorted(rest, key=lambda trial: _deserts(view, course.rungs, trial)))


def _stays(trial: TrialView, rung: int, above: int, course: Course) -> bool:
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
    view: Overview, rungs: tuple[int, ...], place: int, came: Sequence[TrialView]
) -> list[TrialView]:
    """Those that can go on from a rung or have come to their end, the best first."""
    scores = {t.number: _score(view, rungs, place, t) for t in came if t.state != "retired"}
    able = [trial for trial in came if scores.get(trial.number, WORST) > WORST]
    return sorted(able, key=lambda trial: (-scores[trial.number], trial.number))


def _deserts(view: Overview, rungs: tuple[int, ...], trial: TrialView) -> tuple[int, float, int]:
    place = len(bests(view, rungs, trial)) - 1
    return -place, -_score(view, rungs, place, trial), trial.number


def _score(view: Overview, rungs: tuple[int, ...], place: int, trial: TrialView) -> float:
    """The best score until a rung; who ended before it counts with what it ended with."""
    came = bests(view, rungs, trial)
    if place < len(came):
        return came[place]
    return trial.best_score


def bests(view: Overview, rungs: tuple[int, ...], trial: TrialView) -> tuple[float, ...]:
    """The best score until each rung that a trial has come to."""

    def work_out(trial: TrialView) -> tuple[float, ...]:
        best = list(accumulate([report.score for report in trial.reports], max))
        steps = [report.step for report in trial.reports]
        places = [bisect_left(steps, rung) for rung in rungs if rung <= trial.step]
        return tuple([best[place] for place in places])

    return view.of_trial(trial, ("bests", rungs), work_out)
