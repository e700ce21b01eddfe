"""An index of all trials for policies, updated from one snapshot to the next.

A study has thousands of trials of which few change between two plans, and a snapshot shares
unchanged ones with the one before. So an update compares identities and works on the rest. The
index is a cache, not state: a policy that sees a snapshot for the first time builds the same.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from itertools import compress
from operator import is_not
from typing import Any, TypeVar, cast

from optuna_deadline.policies.api import Report, TrialView
from optuna_deadline.policies.rungs import Rung, RungTable

Value = TypeVar("Value")

_STRETCH = 64


class TrialIndex:
    """The index of all trials of one study.

    Attributes:
        alive: The trials that can still be trained, by number.
    """

    def __init__(self, min_resource: int, reduction_factor: int) -> None:
        self.min_resource, self.reduction_factor = min_resource, reduction_factor
        self._forget_all()

    def _forget_all(self) -> None:
        self.alive: dict[int, TrialView] = {}
        self._table: RungTable | None = None  # until a policy asks for it
        self._seen: tuple[TrialView, ...] = ()
        self._paces: list[float] = []
        self._trained: list[float] = []
        self._horizons: list[int] = []
        self._known: dict[Any, Any] = {}
        self._kept: dict[Any, Any] = {}
        self._moved: set[int] = set()
        self._of_trials: dict[tuple[int, Any], tuple[Sequence[Report], Any]] = {}

    @property
    def rungs(self) -> list[Rung]:
        """As :func:`~optuna_deadline.policies.rungs.build_rungs` builds them."""
        if self._table is None:
            self._table = RungTable(self.min_resource, self.reduction_factor)
            self._table.update(self._seen, set())
        return self._table.rungs

    @property
    def furthest(self) -> float:
        """Seconds that the furthest trial was trained; failed ones do not count."""
        return self._trained[-1] if self._trained else 0.0

    @property
    def horizon(self) -> int | None:
        """The last step that an objective has stated."""
        return self._horizons[-1] if self._horizons else None

    @property
    def step_seconds(self) -> float | None:
        """The median over the trials of the seconds of a step on one slot."""
        paces, middle = self._paces, len(self._paces) // 2
        if not paces:
            return None
        return paces[middle] if len(paces) % 2 else (paces[middle - 1] + paces[middle]) / 2

    def steps_to_a_rung(self, trial: TrialView, last: int | None) -> int:
        """Steps until a trial is compared again, or done at the last step if that is known."""
        milestone = self.min_resource
        while milestone <= trial.step:
            milestone *= self.reduction_factor
        return max(0, (milestone if last is None else min(milestone, last)) - trial.step)

    def cached_by_reports(
        self, trial: TrialView, key: Any, work_out: Callable[[TrialView], Value]
    ) -> Value:
        """A value that depends on a trial's reports alone."""
        known = self._of_trials.get((trial.number, key))
        if known is None or known[0] is not trial.reports:
            known = self._of_trials[trial.number, key] = trial.reports, work_out(trial)
        return cast("Value", known[1])

    def cached_by_state(self, key: Any, work_out: Callable[[], Value]) -> Value:
        """A value that depends on the live trials, their slots and the rungs alone."""
        if key not in self._known:
            self._known[key] = work_out()
        return cast("Value", self._known[key])

    def cached_object(self, key: Any, make: Callable[[], Value]) -> Value:
        """An object that updates itself by :meth:`take_changed`."""
        if key not in self._kept:
            self._kept[key] = make()
        return cast("Value", self._kept[key])

    def take_changed(self) -> set[int]:
        """The trials that have changed since the last call."""
        moved, self._moved = self._moved, set()
        return moved

    def update(self, trials: tuple[TrialView, ...]) -> TrialIndex:
        """Update the index to the trials of a snapshot."""
        before = self._seen
        if trials is before:
            return self
        if len(trials) < len(before):
            self._forget_all()
            before = ()
        moved = _differences(before, trials)
        if any([before[place].number != trials[place].number for place in moved]):
            self._forget_all()
            before, moved = (), []
        for place in moved:
            self._replace(before[place], trials[place])
        for trial in trials[len(before) :]:
            self._replace(None, trial)
        self._seen = trials
        return self

    def _replace(self, old: TrialView | None, new: TrialView) -> None:
        self._moved.add(new.number)
        is_same = old is not None and old.reports is new.reports and old.state == new.state
        if self._table is not None and not is_same and self._table.take(new):
            self._known.clear()
        if new.alive:
            self.alive[new.number] = new
        elif old is not None and old.alive:
            del self.alive[new.number]
        if old is None:
            self._known.clear()
            pace, trained, horizon = None, None, None
        else:
            if (old.state, old.slots, old.horizon, old.changed) != (
                new.state, new.slots, new.horizon, new.changed,
            ):  # fmt: skip
                self._known.clear()
            pace, trained, horizon = old.step_seconds, _trained(old), old.horizon
        _exchange(self._paces, pace, new.step_seconds)
        _exchange(self._trained, trained, _trained(new))
        _exchange(self._horizons, horizon, new.horizon)


class TrialIndexCache:
    """An index for each thread that uses a policy; not part of the policy's value."""

    def __init__(self) -> None:
        self._overviews: dict[int, TrialIndex] = {}

    def index_of(
        self, min_resource: int, reduction_factor: int, trials: tuple[TrialView, ...]
    ) -> TrialIndex:
        """Update the thread's index to some trials."""
        thread = threading.get_ident()
        if thread not in self._overviews:
            self._overviews[thread] = TrialIndex(min_resource, reduction_factor)
        return self._overviews[thread].update(trials)

    def __reduce__(self) -> tuple[type[TrialIndexCache], tuple[()]]:
        return TrialIndexCache, ()


def _differences(before: tuple[TrialView, ...], after: tuple[TrialView, ...]) -> list[int]:
    """The positions with another object than before; equal stretches are skipped at once."""
    places: list[int] = []
    for start in range(0, len(before), _STRETCH):
        old, new = before[start : start + _STRETCH], after[start : start + _STRETCH]
        if old != new:
            places += compress(range(start, start + len(old)), map(is_not, old, new))
    return places


def _trained(trial: TrialView | None) -> float | None:
    return None if trial is None or trial.state == "failed" else trial.trained


def _exchange(ranked: list[Any], old: float | None, new: float | None) -> None:
    """Replace one number by another in a sorted list."""
    if old == new:
        return
    if old is not None:
        del ranked[bisect_left(ranked, old)]
    if new is not None:
        insort(ranked, new)
