"""Jobs that share a cluster round by round: Shockwave's market."""

from __future__ import annotations

from optuna_deadline.policies.shockwave.accounting import Allocation, Allocator, Shares
from optuna_deadline.policies.shockwave.forecast import JobView, Market, Regime, Round, Scheduler
from optuna_deadline.policies.shockwave.policy import Shockwave
from optuna_deadline.policies.shockwave.scheduler import Window, WindowScheduler

__all__ = [
    "Allocation",
    "Allocator",
    "JobView",
    "Market",
    "Regime",
    "Round",
    "Scheduler",
    "Shares",
    "Shockwave",
    "Window",
    "WindowScheduler",
]
