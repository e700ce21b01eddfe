"""Pure decisions: a snapshot of the study in, a plan for it out."""

from __future__ import annotations

from optuna_deadline.policies.adaptive_halving import AdaptiveHalving
from optuna_deadline.policies.api import (
    Money,
    Opening,
    Order,
    Pause,
    Plan,
    Policy,
    Report,
    Retire,
    Run,
    Snapshot,
    TrialView,
)
from optuna_deadline.policies.hypersched.policy import HyperSched
from optuna_deadline.policies.pool.fair_share import Divider, EvenDivider, PoolSnapshot, StudyView
from optuna_deadline.policies.pool.purse import PurseDivider
from optuna_deadline.policies.registry import (
    DEFAULT,
    find_policy,
    known_policies,
    make_policy,
)

__all__ = [
    "DEFAULT",
    "AdaptiveHalving",
    "Divider",
    "EvenDivider",
    "HyperSched",
    "Money",
    "Opening",
    "Order",
    "Pause",
    "Plan",
    "Policy",
    "PoolSnapshot",
    "PurseDivider",
    "Report",
    "Retire",
    "Run",
    "Snapshot",
    "StudyView",
    "TrialView",
    "find_policy",
    "known_policies",
    "make_policy",
]
