"""Controls: a few trials, by lot, train to their ends whatever their ranks.

Ranks can hold from each rung to the next and turn round all the same before the end, where good
trials are slow ones. Whoever stops by ranks never sees that, since those that would show it are
stopped. So the trials that were opened first, which nobody has chosen, are controls: one whole
training in fifteen is theirs. Where they come to stand above those that had stood above them at a
rung, two more are trained, and if these say the same, that rung decides no more: who goes on from
there is by lot. The rule and its figures are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from optuna_deadline.policies.api import WORST, TrialView
from optuna_deadline.policies.freeze_thaw.elimination import best_by_rung
from optuna_deadline.policies.trial_index import TrialIndex

#: The time of so many whole trainings has room for one control.
TRAININGS_PER_CONTROL = 15
_MORE = 2  # controls that a doubt calls for
_MOST = 8  # say enough, however long the study
#: Taken for the share of those ahead of a control that it overtakes, as if seen with so many.
_PRIOR, _WEIGHT = 0.2, 2
_FEWEST = 2  # trials ahead without which a control says nothing


@dataclass(frozen=True)
class Controls:
    """What the controls are, and what they say.

    Attributes:
        training: The controls that are to train now.
        spared: The numbers of all that may yet become controls: none of them is retired.
        undecided: So many rungs, the lowest, do not decide who goes on.
    """

    training: tuple[TrialView, ...] = ()
    spared: frozenset[int] = frozenset()
    undecided: int = 0


def choose_controls(
    view: TrialIndex, rungs: tuple[int, ...], opened: Sequence[TrialView], room: int, abreast: int
) -> Controls:
    """Who are the controls, and which rungs do they speak against.

    Args:
        view: The trials at a glance.
        rungs: Steps; the last one is the end of a training.
        opened: All trials that have not failed, by number.
        room: Controls that the time has room for.
        abreast: Controls that train at once, at most.
    """
    if not room or len(rungs) < 2:
        return Controls()
    room = min(room, _MOST)
    most = opened[: room + _MORE]
    overtaken: list[list[float]] = [[] for _ in rungs[1:]]
    count = min(room, len(most))
    controls = {trial.number for trial in most}
    others = [trial for trial in opened if trial.number not in controls]
    for place, control in enumerate(most):
        if place >= room and not any(shares and mean(shares) > 0.5 for shares in overtaken):
            break
        count = place + 1
        said = _overtaken(view, rungs, control, others)
        for shares, share in zip(overtaken, said, strict=True):
            if share is not None:
                shares.append(share)
        if place >= room and control.alive and not any(share is not None for share in said):
            break  # it has yet to say something
    against = [
        (_WEIGHT * _PRIOR + sum(shares)) / (_WEIGHT + len(shares)) > 0.5 for shares in overtaken
    ]
    undecided = max([rung for rung, is_so in enumerate(against, 1) if is_so], default=0)
    training = [trial for trial in most[:count] if trial.alive][:abreast]
    return Controls(tuple(training), frozenset(controls), undecided)


def _overtaken(
    view: TrialIndex, rungs: tuple[int, ...], control: TrialView, others: Sequence[TrialView]
) -> list[float | None]:
    """By rung, of those that stood above a control there, the share that it overtook.

    That is by the furthest rung that it and some of those have come to; None where too few have.
    """
    own = best_by_rung(view, rungs, control)
    theirs = [best_by_rung(view, rungs, trial) for trial in others]
    said: list[float | None] = []
    for place in range(len(rungs) - 1):
        share = None
        for later in range(len(own) - 1, place, -1):
            there = [b[later] for b in theirs if len(b) > later and b[place] > own[place]]
            if len(there) >= _FEWEST:
                share = mean([own[later] > value > WORST for value in there])
                break
        said.append(share)
    return said
