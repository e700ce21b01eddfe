"""When a sampler has nothing more to search: no new trial starts, and the others go on.

What errors of the sampler say: after some that are alike, more trials would only fail too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler, BruteForceSampler, GridSampler
from optuna.samplers._brute_force import _TreeNode
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies.api import Plan, Policy, Snapshot
from optuna_deadline.policies.newcomers import comes_too_late


class StoppableStudy(Study):
    """A study that takes note where its sampler stops it, as samplers of finite spaces do.

    ``Study.stop`` is an error outside of ``study.optimize``, which elastic workers do not call.

    Args:
        study: The study; all else is its own.
    """

    def __init__(self, study: Study) -> None:
        self.__dict__.update(study.__dict__)  # the same storage, sampler and caches
        self.stopped = False

    def stop(self) -> None:
        """Nothing is left to search."""
        self.stopped = True


@dataclass(frozen=True)
class FiniteSearchPolicy:
    """A policy that starts no trial where nothing is left to search, or too little time.

    Args:
        policy: Decides; it is told so, and may give the slots to trials that are open.
        exhausted: Asked where the policy would start a trial.
    """

    policy: Policy
    exhausted: Callable[[], bool]

    def plan(self, snapshot: Snapshot) -> Plan:
        """The policy's plan, with the gate closed at the search's end."""
        plan = self.policy.plan(snapshot)
        if plan.start == 0 or not (comes_too_late(snapshot) or self.exhausted()):
            return plan
        plan = self.policy.plan(replace(snapshot, exhausted=True))
        return replace(plan, start=0, gate_open=False)


def all_cells_begun(study: Study) -> bool:
    """Whether the sampler lists what it searches, and a trial of each was begun.

    Optuna's own count looks at ended trials; trials that pause end late, and meanwhile another
    would be begun for what they try already.
    """
    return cells_to_begin(study) == 0


def cells_to_begin(study: Study) -> int | None:
    """How many configurations no trial was begun with.

    Returns:
        None where the sampler does not list what it searches, or knows nothing of it yet.
    """
    sampler = _innermost(study.sampler)
    if not isinstance(sampler, (BruteForceSampler, GridSampler)):
        return None
    trials = study.get_trials(deepcopy=False)
    begun = [trial for trial in trials if trial.state is not TrialState.WAITING]
    if isinstance(sampler, GridSampler):
        return max(0, sampler._n_min_trials - len(_cells(sampler, begun)))
    tree = _TreeNode()
    known = [trial for trial in begun if trial.params]
    sampler._populate_tree(tree, known, {})
    return tree.count_unexpanded(exclude_running=True) if known else None


def choices_to_begin(study: Study, trial: FrozenTrial) -> int | None:
    """How many combinations of choices no trial was begun with, for a search among choices alone.

    Args:
        study: The study.
        trial: One whose parameters are all suggested.

    Returns:
        None where a parameter of the trial is a number.
    """
    spaces = trial.distributions.values()
    sizes = [len(one.choices) for one in spaces if isinstance(one, CategoricalDistribution)]
    if not sizes or len(sizes) < len(spaces):
        return None
    begun = {repr(sorted(one.params.items())) for one in study.get_trials(deepcopy=False)}
    return max(0, math.prod(sizes) - len(begun))


def _cells(sampler: GridSampler, trials: list[FrozenTrial]) -> set[int]:
    return {
        trial.system_attrs["grid_id"]
        for trial in trials
        if "grid_id" in trial.system_attrs
        and sampler._same_search_space(trial.system_attrs["search_space"])
    }


def _innermost(sampler: BaseSampler) -> BaseSampler:
    """The sampler that others wrap."""
    while isinstance(inner := getattr(sampler, "_sampler", None), BaseSampler):
        sampler = inner
    return sampler


#: So many trials that fail alike are enough.
_MAX_FAILURES = 3


class SamplerErrors:
    """Counts the trials of a worker for which the sampler had an error in place of a value.

    Errors are alike where they differ in numbers only. A later trial that reports, or completes,
    shows that the sampler works for some, and they are counted anew.
    """

    def __init__(self) -> None:
        self._message = ""
        self._pattern = ""
        self._trials: set[int] = set()

    def record_failure(self, number: int, error: Exception) -> None:
        """The sampler had an error for a trial, or for a range that its objective asked for."""
        words = f"{type(error).__name__}: {error}"
        alike = re.sub(r"[\d.]+", "#", words)
        if alike != self._pattern:
            self._pattern, self._message = alike, words
            self._trials.clear()
        self._trials.add(number)

    def record_success(self, number: int) -> None:
        """A trial has its parameters."""
        if self._trials and number > max(self._trials):
            self._trials.clear()

    @property
    def error(self) -> DeadlineError | None:
        """Why no further trial is to be tried, if it is so."""
        if len(self._trials) < _MAX_FAILURES:
            return None
        return DeadlineError(
            f"The sampler failed for {len(self._trials)} trials in the same way ({self._message}):"
            " mend it, or the ranges that the objective asks for, and start the worker again; the"
            " study goes on."
        )
