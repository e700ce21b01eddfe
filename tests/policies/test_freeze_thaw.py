"""FreezeThaw: the course laid towards the deadline, the trust in ranks, and who goes on."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optuna_deadline.forecasting.throughput import Speedup
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
from optuna_deadline.policies.freeze_thaw.elimination import PRIOR, rank_correlation, share_kept
from optuna_deadline.policies.freeze_thaw.policy import FreezeThaw
from optuna_deadline.policies.freeze_thaw.schedule import (
    PoolCosts,
    RemainingBudget,
    longest_schedule,
)
from optuna_deadline.simulation import Cluster, simulate
from optuna_deadline.simulation.tables import draw
from optuna_deadline.testing.policies import PolicyTestCase

pytestmark = [
    pytest.mark.slow_names(r"^test_the_model_in_hand_was_trained.*16"),
    pytest.mark.nightly_but(r"^$"),
]

RUNGS = (1, 3, 9, 27, 81)
POLICY = FreezeThaw()


def trial(number: int, scores: list[float], state: str = "running", slots: int = 1) -> TrialView:
    """A trial whose reports begin at step 1, of a second each, on its way to step 81."""
    reports = tuple(Report(i, score, float(i)) for i, score in enumerate(scores, 1))
    return TrialView(
        number, state, slots if state == "running" else 0, reports,
        horizon=81, step_seconds=1.0 if scores else None,
    )  # fmt: skip


def snapshot(*trials: TrialView, left: float, slots: int = 8) -> Snapshot:
    return Snapshot(
        now=100.0, started=0.0, deadline=100.0 + left, capacity=slots, largest_gang=slots,
        trials=trials,
    )  # fmt: skip


class TestConformance(PolicyTestCase):
    @pytest.fixture
    def policy(self) -> Policy:
        return POLICY


pools = st.builds(
    PoolCosts,
    capacity=st.integers(1, 32),
    largest_gang=st.integers(1, 8),
    speedup=st.sampled_from([Speedup({}), Speedup({2: 1.9, 4: 3.5}), Speedup({2: 0.8})]),
    step=st.floats(0.1, 10),
    overhead=st.floats(0, 5),
)
progresses = st.lists(st.integers(0, 81), max_size=40)
shares = st.floats(1 / 3, 1)


class TestCourse:
    @given(pools, progresses, shares, st.floats(0, 3000))
    @settings(deadline=None)
    def test_it_fits_where_it_opens_any(
        self, pool: PoolCosts, progress: list[int], share: float, left: float
    ) -> None:
        course = longest_schedule(pool, RUNGS, progress, share, RemainingBudget(left))
        assert list(course.counts) == sorted(course.counts, reverse=True)
        assert course.counts[0] >= len(progress) and course.counts[-1] >= 1
        if course.counts[0] > max(1, len(progress)):
            assert course.seconds <= left

    @given(progresses, shares, st.floats(0, 3000), st.floats(0, 3000))
    @settings(deadline=None)
    def test_more_time_never_means_fewer_trials(
        self, progress: list[int], share: float, left: float, more: float
    ) -> None:
        pool = PoolCosts(8, 1, Speedup({}), 1.0, 0.5)
        first = longest_schedule(pool, RUNGS, progress, share, RemainingBudget(left))
        second = longest_schedule(pool, RUNGS, progress, share, RemainingBudget(left + more))
        assert second.counts >= first.counts

    def test_what_was_trained_already_is_not_counted_again(self) -> None:
        pool = PoolCosts(8, 8, Speedup({}), 1.0, 0.0)
        fresh = longest_schedule(pool, RUNGS, [0] * 9, 1 / 3, RemainingBudget(1000.0))
        further = longest_schedule(pool, RUNGS, [27] * 9, 1 / 3, RemainingBudget(1000.0))
        assert further.counts[0] > fresh.counts[0]

    def test_too_many_for_the_time_means_that_fewer_go_on(self) -> None:
        pool = PoolCosts(8, 8, Speedup({2: 1.8, 4: 3.2, 8: 5.0}), 1.0, 0.0)
        roomy, tight = (
            longest_schedule(pool, RUNGS, [3] * 60, 0.8, RemainingBudget(left))
            for left in (1000.0, 60.0)
        )
        assert tight.counts[0] == 60 and tight.counts[-1] < roomy.counts[-1]
        assert tight.seconds <= 60.0


ranks = st.lists(st.floats(-5, 5, allow_nan=False), min_size=24, max_size=60, unique=True)


class TestTrust:
    @given(ranks)
    def test_whose_order_stays_is_trusted_and_whose_order_turns_round_is_not(
        self, scores: list[float]
    ) -> None:
        stays = rank_correlation([[(score, score) for score in scores]])
        turns = rank_correlation([[(score, -score) for score in scores]])
        assert turns < PRIOR < stays
        assert share_kept(stays, 3) == pytest.approx(1 / 3) and share_kept(turns, 3) > 0.5

    def test_nothing_seen_is_the_prior(self) -> None:
        assert (
            rank_correlation([])
            == rank_correlation([[(1.0, None), (2.0, None)]])
            == pytest.approx(PRIOR)
        )

    def test_telling_the_hopeless_from_the_good_is_no_merit(self) -> None:
        hopeless = [(float(-n), float(-n)) for n in range(10, 40)]
        shuffled = [(float(n), float(n * 7 % 31)) for n in range(30)]
        assert rank_correlation([[*hopeless, *shuffled]]) < 0.5

    @given(st.floats(0, 1), st.floats(0, 1))
    def test_the_less_trust_the_more_go_on(self, one: float, other: float) -> None:
        low, high = sorted((one, other))
        assert 1 / 3 <= share_kept(high, 3) <= share_kept(low, 3) <= 1


def _runs(plan: Plan, number: int) -> bool:
    return isinstance(plan.orders[number], Run)


class TestPlans:
    def test_a_trial_thaws_as_soon_as_it_is_among_those_there_is_room_for(self) -> None:
        third = [trial(n, [float(n)], "paused") for n in range(9)]
        plan = POLICY.plan(snapshot(*third, left=2000.0))
        thawed = {n for n, order in plan.orders.items() if isinstance(order, Run)}
        assert thawed == {0, 6, 7, 8}, "the best third of the first rung, and a control"
        assert plan.start == 4 and plan.gate_open

    def test_no_trial_is_opened_that_the_time_has_no_room_for(self) -> None:
        third = [trial(n, [float(n)], "paused") for n in range(9)]
        plan = POLICY.plan(snapshot(*third, left=20.0))
        assert plan.start == 0 and not plan.gate_open

    def test_the_last_one_has_the_slots_that_it_can_use(self) -> None:
        rest = [trial(n, [0.1] * 27, "paused") for n in range(1, 9)]
        plan = FreezeThaw(most_trials=9).plan(snapshot(trial(0, [0.5] * 60), *rest, left=60.0))
        order = plan.orders[0]
        assert isinstance(order, Run) and order.slots > 1

    def test_who_is_halfway_gets_to_the_next_rung_whoever_overtakes_it(self) -> None:
        better = [trial(n, [float(n)], "paused") for n in range(1, 9)]
        halfway, beaten = trial(9, [0.5, 0.5]), trial(10, [0.5])
        at_the_rung = trial(11, [0.5, 0.5, 0.5])
        policy = FreezeThaw(most_trials=11)
        plan = policy.plan(snapshot(*better, halfway, beaten, at_the_rung, left=40.0, slots=4))
        assert isinstance(plan.orders[9], Run), "on its way from rung 1 to rung 3"
        assert isinstance(plan.orders[10], Pause), "no better, and at its rung"
        assert isinstance(plan.orders[11], Pause), "is judged at rung 3"

    def test_of_two_that_would_both_come_to_no_end_one_is_let_go(self) -> None:
        """Side by side neither is done in the time that is left; one on both slots is."""
        ahead, behind = trial(0, [0.6] * 40), trial(1, [0.5] * 35)
        policy = FreezeThaw(most_trials=2)
        roomy, tight = (
            policy.plan(snapshot(ahead, behind, left=left, slots=2)) for left in (100.0, 35.0)
        )
        assert [roomy.orders[n].slots for n in range(2) if _runs(roomy, n)] == [1, 1]
        assert [tight.orders[n].slots for n in range(2) if _runs(tight, n)] == [2]

    def test_what_a_trial_did_since_says_more_than_how_it_began(self) -> None:
        """Where there is hardly time for one it is who leads at the furthest rung."""
        rest = [trial(n, [0.0], "paused") for n in range(2, 9)]
        began_well = trial(0, [0.5] * 27, "paused")
        leads = trial(1, [0.1] * 26 + [0.9], "paused")
        policy = FreezeThaw(most_trials=9)
        plan = policy.plan(snapshot(began_well, leads, *rest, left=25.0, slots=2))
        assert _runs(plan, 1) and not _runs(plan, 0)

    def test_where_ranks_lie_more_go_on(self) -> None:
        """The same first rung; what differs is whether those that went on kept their order."""
        behind = [trial(n, [float(n)], "paused") for n in range(30)]

        def going(later: list[float]) -> int:
            ahead = [
                trial(40 + n, [40.0 + n, 40.0 + n, score], "paused")
                for n, score in enumerate(later)
            ]
            plan = POLICY.plan(snapshot(*behind, *ahead, left=1500.0, slots=64))
            return sum(isinstance(order, Run) for order in plan.orders.values())

        kept = [100.0 + n for n in range(30)]
        assert going(kept[::-1]) > going(kept)

    def test_who_has_diverged_never_goes_on(self) -> None:
        bad = [trial(n, [-math.inf], "paused") for n in range(3)]
        plan = POLICY.plan(snapshot(*bad, trial(3, [1.0], "paused"), left=300.0, slots=2))
        assert all(isinstance(plan.orders[n], Pause) for n in range(3))


@pytest.mark.parametrize("trainings", [4, 8, 16])
def test_the_model_in_hand_was_trained_almost_to_its_end(trainings: int) -> None:
    workload = draw("power-law", 3, steps=81)
    cluster = Cluster(slots=8)
    deadline = trainings * workload.full_seconds / cluster.slots
    policy = FreezeThaw(max_resource=81)
    outcome = simulate(policy, workload, cluster, deadline=deadline, seed=0)
    ours = outcome.regret - outcome.choice_regret  # what more training of it would have brought
    fifo = simulate(make_policy("fifo", {}), workload, cluster, deadline=deadline, seed=0)
    assert ours < 0.02 and outcome.regret < fifo.regret
    assert outcome.idle < 0.05 * outcome.paid
