"""AdaptiveHalving: how far ranks hold, the course laid towards the deadline, and who goes on."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optuna_deadline.forecasting.throughput import Overhead, Speedup
from optuna_deadline.policies import (
    Pause,
    Plan,
    Policy,
    Report,
    Run,
    Snapshot,
    TrialView,
    make_policy,
)
from optuna_deadline.policies.adaptive_halving import AdaptiveHalving
from optuna_deadline.policies.adaptive_halving.course import (
    Limits,
    Pool,
    _courses,
    _tried,
    longest_course,
)
from optuna_deadline.policies.adaptive_halving.rungs import (
    reliabilities,
    rungs_up_to,
    shares_kept,
    telling,
)
from optuna_deadline.policies.api import Request
from optuna_deadline.policies.rungs import BEST_REPORT, Rung, RungTable
from optuna_deadline.policies.wrappers import RequestPolicy
from optuna_deadline.simulation import Cluster, simulate
from optuna_deadline.simulation.tables import draw
from optuna_deadline.testing.policies import PolicyTestCase

pytestmark = [
    pytest.mark.slow_names(r"^test_the_model_in_hand_was_trained.*(8|16)"),
    pytest.mark.nightly_but(r"^$"),
]

STEPS = (1, 2, 4, 8, 16, 32, 81)
POLICY = AdaptiveHalving()
#: Slots that make no trial faster together.
ALONE = Speedup({2: 0.5, 4: 0.5, 8: 0.5})


def trial(number: int, scores: list[float], state: str = "running", slots: int = 1) -> TrialView:
    """A trial whose reports begin at step 1, of a second each, on its way to step 81."""
    reports = tuple(Report(i, score, float(i)) for i, score in enumerate(scores, 1))
    return TrialView(
        number, state, slots if state == "running" else 0, reports,
        horizon=81, step_seconds=1.0 if scores else None,
    )  # fmt: skip


def snapshot(
    *trials: TrialView, left: float, slots: int = 8, speedup: Speedup | None = None
) -> Snapshot:
    return Snapshot(
        now=100.0, started=0.0, deadline=100.0 + left, capacity=slots, largest_gang=slots,
        trials=trials, speedup=speedup or Speedup(), overhead=Overhead(startup=0.5, stop=0.0),
    )  # fmt: skip


def runs(plan: Plan, number: int) -> bool:
    return isinstance(plan.orders.get(number), Run)


class TestConformance(PolicyTestCase):
    @pytest.fixture
    def policy(self) -> Policy:
        return POLICY


def rung(step: int, scores: list[float] | dict[int, float]) -> Rung:
    made = Rung(step)
    for number, score in scores.items() if isinstance(scores, dict) else enumerate(scores):
        made.record(number, score)
    return made


class TestReliability:
    def test_without_pairs_it_is_the_prior(self) -> None:
        assert reliabilities([rung(1, [1.0, 2.0]), rung(2, {})]) == [0.95]

    def test_ranks_that_stay_are_relied_on_and_ranks_that_turn_round_are_not(self) -> None:
        here = [float(n) for n in range(40)]
        [stay] = reliabilities([rung(1, here), rung(2, here)])
        [turn] = reliabilities([rung(1, here), rung(2, here[::-1])])
        assert stay > 0.97 and turn < 0.4

    def test_it_follows_each_record_of_either_rung(self) -> None:
        noise = random.Random(1)
        scores = [[noise.gauss(0, 1) for _ in range(60)] for _ in range(2)]
        here, there = rung(1, scores[0][:40]), rung(2, scores[1][:40])
        for number in range(40, 60):
            for changed, mine in zip((here, there), scores, strict=True):
                changed.record(number, mine[number])
                new = [rung(one.milestone, one.recorded) for one in (here, there)]
                assert reliabilities([here, there]) == reliabilities(new)
        there.forget(7)
        new = [rung(one.milestone, one.recorded) for one in (here, there)]
        assert reliabilities([here, there]) == reliabilities(new)

    def test_a_few_pairs_change_it_little(self) -> None:
        """Else the first trials of a small pool end the search before it has begun."""
        here = [1.0, 2.0, 3.0]
        [turn] = reliabilities([rung(1, here), rung(2, here[::-1])])
        assert turn > 0.8

    def test_it_is_that_of_a_doubling(self) -> None:
        """Noise that decorrelates as much over two doublings is half of it in each."""
        noise = random.Random(0)
        here = [noise.gauss(0, 1) for _ in range(400)]
        there = [score + noise.gauss(0, 0.8) for score in here]
        [one] = reliabilities([rung(1, here), rung(2, there)])
        [two] = reliabilities([rung(1, here), rung(4, there)])
        assert two == pytest.approx(math.sqrt(one), abs=0.02)

    def test_selecting_the_best_does_not_lower_it(self) -> None:
        """Thorndike's correction: the best fifth alone says as much as all would."""
        noise = random.Random(1)
        here = [noise.gauss(0, 1) for _ in range(1000)]
        there = {n: score + noise.gauss(0, 0.6) for n, score in enumerate(here)}
        best = sorted(there, key=lambda n: -here[n])[:200]
        [everyone] = reliabilities([rung(1, here), rung(2, there)])
        [selected] = reliabilities([rung(1, here), rung(2, {n: there[n] for n in best})])
        assert selected == pytest.approx(everyone, abs=0.05)

    def test_a_first_rung_that_says_nothing_is_left_out(self) -> None:
        shuffled = random.Random(2).sample(range(40), 40)
        later = [float(n) for n in range(40)]
        blank = rung(1, [float(n) for n in shuffled])
        rungs = [blank, rung(2, later), rung(4, later)]
        assert telling(rungs) == rungs[1:]
        few = [blank, rung(2, dict(enumerate(later[:15]))), rung(4, {})]
        assert telling(few) == few, "too few to be sure"
        assert telling([*rungs[1:], rung(8, {})])[0].milestone == 2, "its ranks hold"

    def test_the_less_reliable_the_more_go_on(self) -> None:
        rungs = [rung(1, {}), rung(2, {})]
        kept = [shares_kept(rungs, [r])[0] for r in (0.97, 0.9, 0.8, 0.5)]
        assert kept == pytest.approx([0.253, 0.503, 0.747, 1.0], abs=0.001)

    def test_a_table_that_is_kept_up_is_the_one_that_is_built_anew(self) -> None:
        noise = random.Random(2)
        kept, trials = RungTable(1, 2, BEST_REPORT), [trial(n, []) for n in range(6)]
        for _ in range(60):
            n = noise.randrange(6)
            scores = [report.score for report in trials[n].reports] + [noise.random()]
            trials[n] = trial(n, scores, "failed" if noise.random() < 0.02 else "running")
            kept.update(trials, {n})
        new = RungTable(1, 2, BEST_REPORT)
        new.update(trials, set())  # as if all changes had been taken by another table
        assert [(r.milestone, r.ranked) for r in rungs_up_to(kept, 12)] == [
            (r.milestone, r.ranked) for r in rungs_up_to(new, 12)
        ]


pools = st.builds(
    lambda slots, speedup, step, start: Pool(slots, speedup.useful(slots), speedup, step, start),
    st.integers(1, 32),
    st.sampled_from([Speedup({}), Speedup({2: 1.9, 4: 3.5}), Speedup({2: 0.8})]),
    st.floats(0.1, 10),
    st.floats(0, 5),
)
progresses = st.lists(st.integers(1, 81), max_size=40)
shares = st.lists(st.floats(0.1, 1), min_size=6, max_size=6)


class TestCourse:
    @pytest.mark.parametrize("step", [1e-300, 1.0, math.inf, math.nan])
    @pytest.mark.parametrize("start", [0.0, -1.0, math.inf, math.nan])
    def test_a_pace_that_cannot_be_measured_ends_the_search(
        self, step: float, start: float
    ) -> None:
        """A database that was away, or a clock that was set back, can make a pace absurd."""
        pool = Pool(4, [1, 2, 4], Speedup({}), step, start)
        course = longest_course(pool, STEPS, [0.0] * 6, [1, 2, 4], 3, Limits(1e12))
        assert course.counts[0] >= 1

    @given(pools, shares, progresses, st.floats(1, 3000), st.none() | st.integers(40, 200))
    @settings(max_examples=25, deadline=None)
    def test_it_fits_where_it_opens_any(
        self, pool: Pool, kept: list[float], done: list[int], left: float, most: int | None
    ) -> None:
        limits = Limits(left, trials=math.inf if most is None else most)
        course = longest_course(pool, STEPS, kept, done, len(done), limits)
        assert course.counts[0] <= limits.trials
        assert list(course.counts) == sorted(course.counts, reverse=True)
        wider = max(pool.slots, 1)  # as many as there are gangs are always counted
        assert course.fits(limits) or course.counts[0] <= max(len(done), wider)

    @given(pools, shares, progresses, st.floats(1, 3000))
    @settings(max_examples=25, deadline=None)
    def test_no_larger_one_fits(
        self, pool: Pool, kept: list[float], done: list[int], left: float
    ) -> None:
        """It is found by bisection, though gangs make the time no monotonic function."""
        limits = Limits(left)
        found = longest_course(pool, STEPS, kept, done, len(done), limits).counts[0]
        passed = [math.prod(kept[:place]) for place in range(len(STEPS))]
        course = _courses(pool, STEPS, done, len(done), math.inf)
        larger = [trials for trials in _tried(20 * found + 200) if trials > found]
        assert not any([course(trials, passed).fits(limits) for trials in larger])

    def test_what_was_trained_is_not_counted_again(self) -> None:
        pool = Pool(4, [1, 2, 4], Speedup({}), 1.0, 0.0)
        kept = [0.5] * 6
        new = longest_course(pool, STEPS, kept, [], 0, Limits(300.0))
        done = longest_course(pool, STEPS, kept, [16] * 8, 8, Limits(300.0))
        assert done.counts[0] > new.counts[0]

    def test_the_second_look_of_the_first_trials_is_counted(self) -> None:
        pool = Pool(2, [1], Speedup({}), 1.0, 0.5)
        laid = [
            longest_course(pool, STEPS, [0.3] * 6, [], 0, Limits(150.0), first)
            for first in (0, 6, 12)
        ]
        assert laid[0].counts[0] > laid[1].counts[0] > laid[2].counts[0]
        assert all(one.fits(Limits(150.0)) for one in laid)
        passed = [0.3**place for place in range(7)]
        apart = [_courses(pool, STEPS, [], 0, math.inf, first)(20, passed) for first in (0, 12)]
        assert apart[0].counts == apart[1].counts, "as many as before go on by their rank"

    def test_where_all_that_there_are_fit_more_go_on(self) -> None:
        pool = Pool(4, [1, 2, 4], Speedup({}), 1.0, 0.0)
        few = longest_course(pool, STEPS, [0.3] * 6, [], 0, Limits(400.0, trials=10))
        many = longest_course(pool, STEPS, [0.3] * 6, [], 0, Limits(400.0))
        assert few.counts[0] == 10 and sum(few.counts[1:]) > 10 * sum(
            0.3**place for place in range(1, 7)
        )
        assert many.counts[0] > 10


class TestPlan:
    def test_new_trials_come_first_as_long_as_the_course_has_room(self) -> None:
        paused = [trial(n, [float(n)], "paused") for n in range(8)]
        plan = POLICY.plan(snapshot(*paused, left=2000.0, slots=2))
        assert plan.start == 2 and plan.gate_open

    @pytest.mark.parametrize(
        ("study", "left", "starts"), [(190, 90, 1), (180, 80, 0), (100, 49, 1), (100, 40, 0)]
    )
    def test_no_trial_starts_that_could_not_reach_the_last_rung(
        self, study: float, left: float, starts: int
    ) -> None:
        """The last rung is step 81, or step 46 where half of the study has time for no more."""
        leader, other = trial(0, [1.0] * 81, "complete"), trial(1, [0.5], "paused")
        late = snapshot(leader, other, left=left, slots=1)
        assert POLICY.plan(replace(late, started=late.deadline - study)).start == starts

    @pytest.mark.parametrize(
        ("left", "given"), [(14.0, {0: 1, 2: 1}), (10.5, {0: 2}), (6.0, {0: 2})]
    )
    def test_at_the_last_moment_the_leader_takes_the_largest_gang(
        self, left: float, given: dict[int, int]
    ) -> None:
        """Both slots bring it to step 81 in 9.9 s, and another one in 5.5 s."""
        leader, near = trial(0, [1.0] * 64), trial(2, [0.9] * 72, "paused")
        late = snapshot(
            leader, trial(1, [0.5] * 8), near, left=left, slots=2, speedup=Speedup({2: 1.8})
        )
        plan = AdaptiveHalving(n_trials=3).plan(replace(late, started=late.deadline - 200))
        orders = {number: order for number, order in plan.orders.items() if isinstance(order, Run)}
        assert {number: order.slots for number, order in orders.items()} == given

    @pytest.mark.parametrize(
        ("left", "slots", "on"), [(20, 1, {0}), (20, 2, {0, 1}), (30, 1, set())]
    )
    def test_the_best_goes_on_once_no_new_trial_could_come_as_far(
        self, left: float, slots: int, on: set[int]
    ) -> None:
        """The last rung is step 27: half of the study has time for no more."""
        best = trial(0, [1.0] * 30)
        rest = [trial(n, [0.5 - n / 100] * 2, "paused") for n in range(1, 16)]
        late = snapshot(best, *rest, left=left, slots=slots, speedup=ALONE)
        plan = POLICY.plan(replace(late, started=late.deadline - 60))
        assert {number for number in plan.orders if runs(plan, number)} == on

    def test_beyond_the_last_rung_the_last_one_has_the_slots_that_it_can_use(self) -> None:
        rest = [trial(n, [0.0] * 2, "retired") for n in range(1, 9)]
        late = snapshot(trial(0, [1.0] * 70), *rest, left=10.0, slots=4)
        plan = AdaptiveHalving(n_trials=9).plan(replace(late, started=late.deadline - 30))
        assert plan.orders[0].slots == 4  # type: ignore[union-attr]

    def test_a_slow_leader_does_not_end_the_search(self) -> None:
        """It would need six minutes in the largest gang, and a new trial a minute and a half."""
        slow = replace(trial(0, [1.0] * 16), step_seconds=10.0)
        others = [trial(n, [0.5] * 2, "paused") for n in range(1, 9)]
        early = snapshot(slow, *others, left=100.0, slots=2, speedup=Speedup({2: 1.8}))
        plan = POLICY.plan(replace(early, started=-100.0))
        assert plan.start == 1 and plan.orders[0] == replace(plan.orders[0], slots=1)

    def test_a_trial_that_is_pinned_has_not_trained_to_its_end(self) -> None:
        """Else the time that it still needs would go to new trials."""
        leader, others = trial(0, [1.0] * 4), range(1, 16)
        late = snapshot(leader, *(trial(n, [0.5], "paused") for n in others), left=20.0, slots=4)
        pinned = replace(late, requests=(Request(0, pinned=1),))
        assert POLICY.plan(late).start == RequestPolicy(POLICY).plan(pinned).start == 0

    def test_no_trial_starts_or_goes_on_that_has_no_time_for_a_step(self) -> None:
        paused, on = trial(0, [0.9], "paused"), trial(1, [0.5])
        plan = POLICY.plan(snapshot(paused, on, left=1.2, slots=4, speedup=ALONE))
        assert plan.start == 0 and not runs(plan, 0) and runs(plan, 1)

    def test_a_trial_within_its_last_step_keeps_its_slot(self) -> None:
        """No further step fits, but the one that it is in may end; another gang is too late."""
        best, quick = trial(0, [0.9] * 40), replace(trial(1, [0.1], "paused"), step_seconds=0.1)
        rest = [trial(n, [0.0] * 2, "retired") for n in range(2, 9)]
        late = snapshot(best, quick, *rest, left=0.9, slots=1)
        assert AdaptiveHalving(n_trials=9).plan(late).orders[0].slots == 1  # type: ignore[union-attr]
        late = snapshot(best, *rest, left=0.9, slots=2, speedup=Speedup({2: 1.8}))
        assert AdaptiveHalving(n_trials=9).plan(late).orders[0].slots == 1  # type: ignore[union-attr]

    def test_the_last_one_has_the_slots_that_it_can_use(self) -> None:
        rest = [trial(n, [0.0] * 2, "retired") for n in range(1, 9)]
        policy = AdaptiveHalving(n_trials=9)
        plan = policy.plan(snapshot(trial(0, [0.9] * 40), *rest, left=30.0, slots=4))
        order = plan.orders[0]
        assert isinstance(order, Run) and order.slots == 4
        alone = snapshot(trial(0, [0.9] * 40), *rest, left=30.0, slots=4, speedup=ALONE)
        assert policy.plan(alone).orders[0].slots == 1  # type: ignore[union-attr]

    def test_the_first_twelve_go_on_whatever_they_score(self) -> None:
        """Here ranks hold well and room is scarce: by its rank the worst would wait."""
        worst = trial(7, [-5.0], "paused")
        others = [trial(n, [float(n)] * 4, "paused") for n in (*range(7), *range(8, 40))]
        plan = AdaptiveHalving(n_trials=40).plan(
            snapshot(worst, *others, left=90.0, slots=4, speedup=ALONE)
        )
        assert runs(plan, 7)

    def test_who_has_diverged_never_goes_on(self) -> None:
        bad = [trial(n, [-math.inf], "paused") for n in range(3)]
        plan = POLICY.plan(snapshot(*bad, trial(3, [1.0], "paused"), left=300.0, slots=2))
        assert not any(runs(plan, n) for n in range(3))

    def test_a_reason_has_the_numbers(self) -> None:
        trials = [trial(n, [float(n)], "paused") for n in range(20)]
        plan = AdaptiveHalving(n_trials=20).plan(snapshot(*trials, left=100.0, slots=4))
        reason = plan.orders[19].reason
        assert "rung 1: 1 of 20, " in reason and "ranks hold 0.95" in reason

    def test_where_ranks_turn_round_fewer_trials_train_deeper(self) -> None:
        pool = Pool(4, [1], ALONE, 1.0, 0.0)
        turn, hold = (
            longest_course(pool, STEPS, [share] * 6, [], 0, Limits(400.0)) for share in (1.0, 0.3)
        )
        assert turn.counts[0] < hold.counts[0] and turn.counts[-1] > hold.counts[-1]

    def test_where_slots_are_idle_no_trial_waits(self) -> None:
        trials = [trial(n, [float(n)] * 3, "paused") for n in range(4)]
        plan = AdaptiveHalving(n_trials=4).plan(
            snapshot(*trials, left=300.0, slots=4, speedup=ALONE)
        )
        assert all(runs(plan, n) for n in range(4))
        assert not any(isinstance(order, Pause) for order in plan.orders.values())


@pytest.mark.parametrize("trainings", [4, 8, 16])
def test_the_model_in_hand_was_trained_almost_to_its_end(trainings: int) -> None:
    workload = draw("power-law", 3, steps=81)
    cluster = Cluster(slots=8)
    deadline = trainings * workload.full_seconds / cluster.slots
    policy = AdaptiveHalving(max_resource=81)
    outcome = simulate(policy, workload, cluster, deadline=deadline, seed=0)
    ours = outcome.regret - outcome.choice_regret  # what more training of it would have brought
    fifo = simulate(make_policy("fifo", {}), workload, cluster, deadline=deadline, seed=0)
    assert ours < 0.02 and outcome.regret < fifo.regret
    assert outcome.idle < 0.05 * outcome.paid
