"""Trials and snapshots for policies that share slots in turns."""

from __future__ import annotations

from optuna_deadline.forecasting.throughput import Overhead
from optuna_deadline.policies import Policy, Report, Run, Snapshot, TrialView


def trial(
    number: int, scores: list[float], state: str = "running", changed: float = 0.0, slots: int = 1
) -> TrialView:
    """A trial with a report after each step of a second; it changed long ago by default."""
    reports = tuple(Report(i, score, float(i)) for i, score in enumerate(scores, 1))
    held = slots if state == "running" else 0
    return TrialView(number, state, held, reports, changed, 100, 1.0 if scores else None)


def snapshot(*trials: TrialView, slots: int = 4, left: float = 1000.0) -> Snapshot:
    return Snapshot(
        now=500.0, started=0.0, deadline=500.0 + left, capacity=slots, largest_gang=slots,
        trials=trials, overhead=Overhead(0.2, 0.05),
    )  # fmt: skip


def served(policy: Policy, view: Snapshot) -> set[int]:
    orders = policy.plan(view).orders
    return {number for number, order in orders.items() if isinstance(order, Run)}
