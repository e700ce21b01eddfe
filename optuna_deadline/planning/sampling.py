"""Finite searches and repeated errors of a sampler."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler, BruteForceSampler, GridSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_deadline._optuna import cells_left, points_left, share_state
from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies.api import Plan, Policy, Snapshot
from optuna_deadline.policies.newcomers import comes_too_late


class StoppableStudy(Study):
    """A study that records a ``stop`` by its sampler, as samplers of finite spaces call it.

    ``Study.stop`` raises outside of ``study.optimize``, which elastic workers do not call.

    Args:
        study: The study; everything else is its own.
    """

    def __init__(self, study: Study) -> None:
        share_state(self, study)
        self.stopped = False

    def stop(self) -> None:
        """Record that the search is exhausted."""
        self.stopped = True


@dataclass(frozen=True)
class FiniteSearchPolicy:
    """Starts no trial if the search is exhausted or too little time is left.

    Args:
        policy: The policy; it sees that the search is exhausted and may give the slots to open
            trials.
        exhausted: Called when the policy would start a trial.
    """

    policy: Policy
    exhausted: Callable[[], bool]

    def plan(self, snapshot: Snapshot) -> Plan:
        """The policy's plan; the gate is closed once the search is exhausted."""
        plan = self.policy.plan(snapshot)
        if plan.new_trials == 0 or not (comes_too_late(snapshot) or self.exhausted()):
            return plan
        plan = self.policy.plan(replace(snapshot, exhausted=True))
        return replace(plan, start=0, openings=(), gate_open=False)


def cells_to_begin(study: Study) -> int | None:
    """The number of configurations that no trial has started with.

    Optuna counts finished trials only. A paused trial finishes late, and until then Optuna would
    start another trial with the same configuration.

    Returns:
        None if the sampler has no finite list, or does not know it yet.
    """
    sampler = _innermost(study.sampler)
    if not isinstance(sampler, (BruteForceSampler, GridSampler)):
        return None
    trials = study.get_trials(deepcopy=False)
    begun = [trial for trial in trials if trial.state is not TrialState.WAITING]
    if isinstance(sampler, GridSampler):
        return cells_left(sampler, begun)
    return points_left(sampler, begun)


def choices_to_begin(study: Study, trial: FrozenTrial) -> int | None:
    """The number of combinations that no trial has started with, if all parameters are choices.

    Args:
        study: The study.
        trial: A trial whose parameters are all suggested.

    Returns:
        None if a parameter of the trial is a number.
    """
    spaces = trial.distributions.values()
    sizes = [len(one.choices) for one in spaces if isinstance(one, CategoricalDistribution)]
    if not sizes or len(sizes) < len(spaces):
        return None
    begun = {repr(sorted(one.params.items())) for one in study.get_trials(deepcopy=False)}
    return max(0, math.prod(sizes) - len(begun))


def _innermost(sampler: BaseSampler) -> BaseSampler:
    """The innermost wrapped sampler."""
    while isinstance(inner := getattr(sampler, "_sampler", None), BaseSampler):
        sampler = inner
    return sampler


#: Number of equal failures after which no further trial is tried.
_MAX_FAILURES = 3


class SamplerErrors:
    """Counts the trials of a worker for which the sampler raised.

    Errors that differ in numbers only count as equal. A later trial that gets its parameters
    resets the count.
    """

    def __init__(self) -> None:
        self._message = ""
        self._pattern = ""
        self._trials: set[int] = set()

    def record_failure(self, number: int, error: Exception) -> None:
        """Record that the sampler raised for a trial, or for a parameter of its objective."""
        words = f"{type(error).__name__}: {error}"
        alike = re.sub(r"[\d.]+", "#", words)
        if alike != self._pattern:
            self._pattern, self._message = alike, words
            self._trials.clear()
        self._trials.add(number)

    def record_success(self, number: int) -> None:
        """Record that a trial got its parameters."""
        if self._trials and number > max(self._trials):
            self._trials.clear()

    @property
    def error(self) -> DeadlineError | None:
        """The error that ends the worker; None below the limit."""
        if len(self._trials) < _MAX_FAILURES:
            return None
        return DeadlineError(
            f"The sampler failed for {len(self._trials)} trials in the same way ({self._message}):"
            " mend it, or the ranges that the objective asks for, and start the worker again; the"
            " study goes on."
        )
