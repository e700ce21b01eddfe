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
from optuna_deadline.policies.baselines.fifo import Fifo
from optuna_deadline.policies.baselines.halving import (
    Asha,
    AshaPromote,
    Hyperband,
    SuccessiveHalving,
)
from optuna_deadline.policies.baselines.stopping import Median
from optuna_deadline.policies.baselines.time_sharing import RoundRobin
from optuna_deadline.policies.hermes import Hermes
from optuna_deadline.policies.hypersched.policy import HyperSched
from optuna_deadline.policies.pool.fair_share import Divider, EvenDivider, PoolSnapshot, StudyView
from optuna_deadline.policies.pool.purse import PurseDivider
from optuna_deadline.policies.pruner import MeasuredHalving
from optuna_deadline.policies.registry import (
    DEFAULT,
    find_policy,
    known_policies,
    make_policy,
)
from optuna_deadline.policies.seer.policy import Seer
from optuna_deadline.policies.shockwave.policy import Shockwave

__all__ = [
    "AdaptiveHalving",
    "Asha",
    "AshaPromote",
    "DEFAULT",
    "Divider",
    "EvenDivider",
    "Fifo",
    "Hermes",
    "HyperSched",
    "Hyperband",
    "MeasuredHalving",
    "Median",
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
    "RoundRobin",
    "Run",
    "Seer",
    "Shockwave",
    "Snapshot",
    "StudyView",
    "SuccessiveHalving",
    "TrialView",
    "find_policy",
    "known_policies",
    "make_policy",
]
