"""Compares many simulated ends of a study with and without a change, at the forecast's level.

If a hundred trials are drawn within their bands, the best of them is one that was drawn too high,
so the simulated end of a study is better than the real one. The best value is forecast from the
study's own past instead, which is backtested. So the draws keep their order, their gains keep
their proportions, and the level is the forecast's. This is our rule.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from optuna_deadline.forecasting.curve_priors import LEVELS
from optuna_deadline.forecasting.futures import limits_of
from optuna_deadline.history.forecast import forecast, known_curves
from optuna_deadline.history.records import History
from optuna_deadline.policies.api import Policy
from optuna_deadline.scenarios.futures import Change, Draws, End, machines, run, usual_looks
from optuna_deadline.scenarios.initial_state import InitialState
from optuna_deadline.study import policy_choice
from optuna_deadline.values.scores import score


def calibrate(
    as_it_is: Sequence[float], changed: Sequence[float], levels: Sequence[float], best: float
) -> tuple[list[float], list[float]]:
    """The scores of both ends of each draw, at the level of the forecast.

    Args:
        as_it_is: Simulated scores, by draw.
        changed: With the change, in the same draws; empty without a change.
        levels: The forecast of the best score without a change, at each of
            :data:`~optuna_deadline.forecasting.curve_priors.LEVELS`.
        best: The best score now.

    Returns:
        The draws, evenly spread over the forecast in the order of their simulated scores; and the
        same with the change, whose gain is scaled by the forecast's rise relative to the simulated
        one, and never enlarged.
    """
    before, count = np.asarray(as_it_is, dtype=float), len(as_it_is)
    after = np.asarray(changed, dtype=float) if len(changed) else before
    ranks = np.empty(count)
    ranks[np.lexsort((after, before))] = np.arange(count)
    real = np.interp((ranks + 0.5) / count, LEVELS, levels)
    simulated, forecast = float(before.mean()) - best, float(real.mean()) - best
    part = min(1.0, forecast / simulated) if simulated > 0 else 1.0
    moved = np.maximum(best, real + part * (after - before))
    return real.tolist(), moved.tolist() if len(changed) else []


AS_IT_IS = Change()
DRAWS = 32  #: pairs of simulated ends, unless that takes longer than
SECONDS = 10.0  #: this, after which no further pair starts

#: From this many trials on, a test run measures the time of a simulation, with this many polls.
_LARGE, _COARSE_LOOKS = 100, 12

_LOW, _MID, _HIGH = (LEVELS.index(level) for level in (0.1, 0.5, 0.9))


@dataclass(frozen=True)
class Prospect:
    """What a study would end with.

    Attributes:
        expected: The median over the draws of the best value at the end.
        low: Eight of ten draws end between ``low`` and ``high``, ``low`` being the worse one.
        high: See ``low``.
        slot_hours: Mean slot-hours of all its trials, including those until now.
        spent: Mean cost, likewise; None without prices.
        new_trials: Trials opened from now on; the mean.
        levels: The best score at each of the levels, larger is better.
    """

    expected: float
    low: float
    high: float
    slot_hours: float
    spent: float | None
    new_trials: float
    levels: tuple[float, ...]


@dataclass(frozen=True)
class Gain:
    """The gain of a change: how much better the value would be, draw by draw.

    Attributes:
        expected: The mean over the draws; negative if it would be worse.
        error: Its standard error; None of one draw.
        low: Eight of ten draws lie between ``low`` and ``high``.
        high: See ``low``.
        better: The share of the draws in which the value would be better.
    """

    expected: float
    error: float | None
    low: float
    high: float
    better: float


@dataclass(frozen=True)
class WhatIf:
    """A study's prospects as it is and with a change, over the same draws.

    Attributes:
        best: The best value now.
        as_it_is: With what it has.
        changed: With the change; None without one.
        gain: The paired gain of the change; None without one.
        draws: Number of simulated ends of each case.
        currency: Currency of the cost; None without prices.
    """

    best: float
    as_it_is: Prospect
    changed: Prospect | None
    gain: Gain | None
    draws: int
    currency: str | None = None


Pair = tuple[End, End | None]


class Scenario:
    """A question about a study, and the simulation of its answer.

    Args:
        history: The study's, now.
        change: The change.
        policy: The study's policy, if it is an object of this process.
        draws: Pairs of ends to simulate.
        seed: Of the draws.
        clock: A monotonic clock in seconds.

    Raises:
        DeadlineError: The study has ended, has measured nothing yet, has no budget to increase, or
            its policy cannot be created here.
    """

    def __init__(
        self,
        history: History,
        change: Change = AS_IT_IS,
        *,
        policy: policy_choice.PolicyLike | None = None,
        draws: int = DRAWS,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._initial = InitialState.of(history, change.seconds)
        self._change = change
        self._draws = draws
        self._rests = Draws(self._initial, seed)
        parameters = dict(history.parameters)
        chosen = history.policy if policy is None else policy
        self._make: Callable[[], Policy] = lambda: policy_choice.make(chosen, parameters)
        self._make()
        machines(self._initial, change.slots)

    def pairs(self, seconds: float = SECONDS) -> Iterator[Pair]:
        """The ends of each draw, one after the other, until the time is up; at least one pair."""
        began = self._clock()
        looks = self._affordable_looks(seconds)
        for number in range(self._draws):
            if number and self._clock() - began > seconds:
                return
            yield self._pair(number, looks)

    def _affordable_looks(self, seconds: float) -> int:
        """The resolution of the rest of the study at which a pair takes half the time.

        The time of a plan depends on the policy and grows with the trials, so a coarse run
        measures it if the study is large. Only halves are used, so that the result is the same in
        each run.
        """
        looks = usual_looks(self._initial)
        if len(self._initial.planned_rows) < _LARGE:
            return looks
        began = self._clock()
        run(self._initial, self._rests.draw(0), AS_IT_IS, self._make, _COARSE_LOOKS)
        a_look = (self._clock() - began) / _COARSE_LOOKS
        sides = 1 if self._change == AS_IT_IS else 2
        while looks > _COARSE_LOOKS and looks * a_look * sides > seconds / 2:
            looks = max(_COARSE_LOOKS, looks // 2)
        return looks

    def _pair(self, number: int, looks: int) -> Pair:
        rest = self._rests.draw(number)
        as_it_is = run(self._initial, rest, AS_IT_IS, self._make, looks)
        if self._change == AS_IT_IS:
            return as_it_is, None
        return as_it_is, run(self._initial, rest, self._change, self._make, looks)

    def answer(self, pairs: Sequence[Pair]) -> WhatIf:
        """The answer from the pairs."""
        history = self._initial.history
        best = history.improvements[-1].value
        now = [end for end, _ in pairs]
        then = [end for _, end in pairs if end is not None]
        before, after = calibrate(
            [end.score for end in now], [end.score for end in then],
            forecast(history).levels, score(best, history.direction),
        )  # fmt: skip
        limits = limits_of(known_curves(history).values())
        before, after = (np.clip(scores, *limits).tolist() for scores in (before, after))
        return WhatIf(
            best=best,
            as_it_is=_prospect(now, before, history.direction),
            changed=_prospect(then, after, history.direction) if then else None,
            gain=_gain(before, after) if then else None,
            draws=len(pairs),
            currency=None if history.budget is None else history.budget.currency,
        )


def _prospect(ends: Sequence[End], scores: Sequence[float], direction: str) -> Prospect:
    levels = np.quantile(scores, LEVELS).tolist()
    spent = [end.spent for end in ends if end.spent is not None]
    return Prospect(
        expected=score(levels[_MID], direction),
        low=score(levels[_LOW], direction),
        high=score(levels[_HIGH], direction),
        slot_hours=fmean(end.slot_seconds for end in ends) / 3600.0,
        spent=fmean(spent) if spent else None,
        new_trials=fmean(end.opened for end in ends),
        levels=tuple(levels),
    )


def _gain(before: Sequence[float], after: Sequence[float]) -> Gain:
    gains = [then - now for now, then in zip(before, after, strict=True)]
    low, high = np.quantile(gains, [LEVELS[_LOW], LEVELS[_HIGH]]).tolist()
    return Gain(
        expected=fmean(gains),
        error=stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else None,
        low=low,
        high=high,
        better=fmean(gain > 0 for gain in gains),
    )
