"""Jobs that share a cluster round by round: Shockwave's market and the fairness baselines."""

from __future__ import annotations

from optuna_deadline.policies.shockwave.accounting import Allocation, Allocator, Shares
from optuna_deadline.policies.shockwave.allox import AlloX
from optuna_deadline.policies.shockwave.baselines import (
    FinishTimeFair,
    GandivaFair,
    MaxMinFair,
    MaxThroughput,
    MinTotalDuration,
)
from optuna_deadline.policies.shockwave.policy import ShockwaveStudy
from optuna_deadline.policies.shockwave.scheduler import Shockwave, Window
from optuna_deadline.policies.shockwave.studies import StudyMarket
from optuna_deadline.policies.shockwave.views import JobView, Market, Regime, Round, Scheduler

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
    "ShockwaveStudy",
    "StudyMarket",
    "Window",
]
