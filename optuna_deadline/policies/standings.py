"""Where HyperSched's trials stand: who survives, who waits, and who comes after the survivors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from optuna_deadline.policies.overview import Overview
from optuna_deadline.policies.rungs import Rung, build_rungs, first_report
from optuna_deadline.policies.snapshot import WORST, TrialView


class Standing(NamedTuple):
    """Where a trial stands; in the order of these values the most deserving comes first."""

    fails: bool  #: below the cut of a rung
    above: int  #: less its highest rung
    worse: float  #: less what it recorded there
    number: int
    rung: Rung | None  #: the highest at which it fails, else the highest that it reached

    def words(self, trial: TrialView) -> str:
        """Why it runs, or does not."""
        if self.rung is None:
            return "starts: a free slot" if trial.state == "ready" else "resumes: not yet judged"
        if not self.fails:
            return f"resumes: stands above the cut of rung {self.rung.milestone}"
        if trial.running:
            mine, cut = abs(self.rung.recorded[self.number]), abs(self.rung.cutoff or 0.0)
            return f"below the cut of rung {self.rung.milestone}: {mine:.4g} against {cut:.4g}"
        return "resumes: the best of those that wait for a slot nobody else can use"


@dataclass(frozen=True)
class Field:
    """All living trials: those that train and pass, and the others, the most deserving first."""

    survivors: list[int]
    others: list[Standing]

    def contenders(self) -> list[int]:
        """Who is above every cut, or was never judged."""
        return self.survivors + [standing.number for standing in self.others if not standing.fails]

    def heirs(self, view: Overview, retroactive: bool) -> list[int]:
        """Who takes the pool once no survivor is left: our reconstruction.

        Those that wait above every cut, or were never judged; where there are none the living are
        judged among themselves, without those that have ended; where nobody passes even so, the
        best alone.
        """
        if passing := [standing.number for standing in self.others if not standing.fails]:
            return passing
        rungs = build_rungs(view.alive.values(), view.min_resource, view.reduction_factor)
        again = _stand_all(view.alive.values(), rungs, retroactive)
        return [s.number for s in again if not s.fails] or [s.number for s in again[:1]]


def stand(view: Overview, retroactive: bool) -> Field:
    """Judge the living trials by the rungs as they are."""
    survivors: list[int] = []
    others: list[Standing] = []
    alive = view.alive
    for standing in _stand_all(_nearly_sorted(view), view.rungs, retroactive):
        if standing.fails or not alive[standing.number].slots:
            others.append(standing)
        else:
            survivors.append(standing.number)
    view.order = survivors + [standing.number for standing in others]
    return Field(survivors, others)


def _nearly_sorted(view: Overview) -> list[TrialView]:
    """The living in the order in which they stood last: to sort that again costs little."""
    alive = view.alive
    known = [number for number in view.order if number in alive]
    if len(known) < len(alive):
        known += alive.keys() - set(known)
    return [alive[number] for number in known]


def _stand_all(
    trials: Iterable[TrialView], rungs: Sequence[Rung], retroactive: bool
) -> list[Standing]:
    cuts = [(rung.milestone, rung.recorded, rung.cutoff, rung) for rung in reversed(rungs)]
    standings = []
    for trial in trials:
        number, reports = trial.number, trial.reports
        last = reports[-1].step if reports else 0
        above, worse, found, fails = 0, -WORST, None, False
        judged = True
        for milestone, recorded, cut, rung in cuts:
            if milestone > last:
                continue
            score = recorded[number]
            if found is None:
                above, worse, found = -milestone, -score, rung
                judged = retroactive or first_report(reports, milestone) is reports[-1]
            if judged and cut is not None and score < cut:
                found, fails = rung, True
                break
            if not retroactive:
                break
        standings.append(Standing(fails, above, worse, number, found))
    standings.sort()
    return standings
