"""Jobs that share a cluster round by round: Shockwave's market and the fairness baselines."""

from __future__ import annotations

from optuna_deadline.policies.market.allocators import (
    FinishTimeFair,
    GandivaFair,
    MaxMinFair,
    MaxThroughput,
    MinTotalDuration,
)
from optuna_deadline.policies.market.allox import AlloX
from optuna_deadline.policies.market.shares import Allocation, Allocator, Shares
from optuna_deadline.policies.market.shockwave import Shockwave, Window
from optuna_deadline.policies.market.studies import StudyMarket
from optuna_deadline.policies.market.views import JobView, Market, Regime, Round, Scheduler

__all__ = [
    "AlloX",
    "Allocation",
    "Allocator",
    "FinishTimeFair",
    "GandivaFair",
    "JobView",
    "Market",
    "MaxMinFair",
    "MaxThroughput",
    "MinTotalDuration",
    "Regime",
    "Round",
    "Scheduler",
    "Shares",
    "Shockwave",
    "StudyMarket",
    "Window",
]
