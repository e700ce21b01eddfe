"""What is kept up from one snapshot to the next is what would be built anew."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from optuna_deadline.policies import HyperSched, Policy, Report, Snapshot, TrialView
from optuna_deadline.policies.baselines.halving import Asha, AshaPromote
from optuna_deadline.policies.rungs import build_rungs
from optuna_deadline.policies.trial_index import TrialIndex
from optuna_deadline.testing.policies import snapshots


def _go_on(draw: st.DrawFn, view: TrialView) -> TrialView:
    """What may become of a trial between two snapshots."""
    change = draw(st.sampled_from(["nothing", "nothing", "report", "report", "state", "late"]))
    if change == "report":
        score = draw(st.sampled_from([0.0, 0.5, 1.0, -float("inf")]))
        step = view.step + draw(st.integers(1, 5))
        return replace(
            view, reports=(*view.reports, Report(step, score, 2.0 * step)), step_seconds=2.0
        )
    if change == "state":
        state = draw(st.sampled_from(["running", "paused", "failed", "complete"]))
        return replace(view, state=state, slots=1 if state == "running" else 0, horizon=50)
    if change == "late" and len(view.reports) > 1:
        return replace(view, reports=view.reports[1:])
    return view


@st.composite
def histories(draw: st.DrawFn) -> list[Snapshot]:
    """A study at several instants; snapshots share what has not changed."""
    history = [draw(snapshots())]
    for _ in range(draw(st.integers(1, 4))):
        before = history[-1]
        trials = [_go_on(draw, view) for view in before.trials]
        for _ in range(draw(st.integers(0, 2))):
            trials.append(TrialView(len(trials), "ready"))
        if draw(st.integers(0, 9)) == 0:
            trials.reverse()
        now = before.now + draw(st.floats(0, 50))
        history.append(replace(before, now=now, trials=tuple(trials)))
    return history


@given(histories())
def test_an_overview_is_what_would_be_built_anew(history: list[Snapshot]) -> None:
    kept = TrialIndex(1, 2)
    for snapshot in history:
        trials = snapshot.trials
        kept.update(trials)
        assert list(map(_rung, kept.rungs)) == list(map(_rung, build_rungs(trials, 1, 2)))
        assert kept.alive == {view.number: view for view in trials if view.alive}
        paces = [view.step_seconds for view in trials if view.step_seconds is not None]
        assert kept.step_seconds == (median(paces) if paces else None)
        horizons = [view.horizon for view in trials if view.horizon is not None]
        assert kept.horizon == max(horizons, default=None)
        trained = [view.trained for view in trials if view.state != "failed"]
        assert kept.furthest == max(trained, default=0.0)


_judging_once = partial(HyperSched, retroactive=False)


@given(histories(), st.sampled_from([HyperSched, _judging_once, AshaPromote, Asha]))
def test_a_policy_that_has_seen_a_study_decides_as_a_new_one(
    history: list[Snapshot], make: Callable[[], Policy]
) -> None:
    used: Policy = make()
    for snapshot in history:
        assert used.plan(snapshot) == make().plan(snapshot)


def test_what_a_policy_has_seen_is_no_part_of_it() -> None:
    used = HyperSched()
    used.plan(Snapshot(1.0, 0.0, 9.0, 2, 2, (TrialView(0, "running", 1),)))
    assert used == HyperSched() and hash(used) == hash(HyperSched())
    assert pickle.loads(pickle.dumps(used)) == used


def _rung(rung: object) -> tuple[object, ...]:
    names = ("milestone", "recorded", "cutoff")
    return tuple(getattr(rung, name) for name in names)
