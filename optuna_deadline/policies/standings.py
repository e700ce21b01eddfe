"""Where HyperSched's trials stand: who survives, who waits, and who comes after the survivors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from optuna_deadline.policies.overview import Overview
from optuna_deadline.policies.rungs import Rung, build_rungs, first_report
from optuna_deadline.policies.snapshot import WORST, TrialView


@dataclass(frozen=True)
class Standing:
    """Where a trial stands: its highest rung, what it recorded there, whether it passes all."""

    number: int
    milestone: int
    recorded: float
    passes: bool
    words: str


@dataclass(frozen=True)
class Field:
    """All living trials: those that train and pass, and the others, the most deserving first."""

    survivors: list[int]
    others: list[Standing]

    def heirs(self, view: Overview, retroactive: bool) -> list[int]:
        """Who takes the pool once no survivor is left: our reconstruction.

        Those that wait above every cut, or were never judged; where there are none the living are
        judged among themselves, without those that have ended; where nobody passes even so, the
        best alone.
        """
        if passing := [standing.number for standing in self.others if standing.passes]:
            return passing
        rungs = build_rungs(view.alive.values(), view.min_resource, view.reduction_factor)
        again = _stand_all(view.alive.values(), rungs, retroactive)
        return [s.number for s in again if s.passes] or [s.number for s in again[:1]]


def stand(view: Overview, retroactive: bool) -> Field:
    """Judge the living trials by the rungs as they are."""
    standings = _stand_all(view.alive.values(), view.rungs, retroactive)
    survivors, others = [], []
    for standing in standings:
        if standing.passes and view.alive[standing.number].running:
            survivors.append(standing.number)
        else:
            others.append(standing)
    return Field(survivors, others)


def _stand_all(
    trials: Iterable[TrialView], rungs: Sequence[Rung], retroactive: bool
) -> list[Standing]:
    """The most deserving first: those that pass from the top rung down, then the others."""
    standings = [_stand(trial, rungs, retroactive) for trial in trials]
    return sorted(standings, key=lambda s: (not s.passes, -s.milestone, -s.recorded, s.number))


def _stand(trial: TrialView, rungs: Sequence[Rung], retroactive: bool) -> Standing:
    number = trial.number
    reached = [rung for rung in rungs if number in rung.recorded]
    if not reached:
        words = "starts: a free slot" if trial.state == "ready" else "resumes: not yet judged"
        return Standing(number, 0, WORST, True, words)
    top = reached[-1]
    recorded = top.recorded[number]
    judges = reached
    if not retroactive:
        stays = first_report(trial.reports, top.milestone) is trial.reports[-1]
        judges = [top] if stays else []
    failed = next((rung for rung in reversed(judges) if not rung.passed(number)), None)
    if failed is None:
        words = f"resumes: stands above the cut of rung {top.milestone}"
    elif trial.running:
        mine, cut = abs(failed.recorded[number]), abs(failed.cutoff or 0.0)
        words = f"below the cut of rung {failed.milestone}: {mine:.4g} against {cut:.4g}"
    else:
        words = "resumes: the best of those that wait for a slot nobody else can use"
    return Standing(number, top.milestone, recorded, failed is None, words)
