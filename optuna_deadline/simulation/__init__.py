"""The production planning loop and policies on a virtual clock, with simulated workers."""

from __future__ import annotations

from optuna_deadline.simulation.cluster import ANTI, LINEAR, SUBLINEAR, Cluster, Faults
from optuna_deadline.simulation.families import FAMILIES, generate
from optuna_deadline.simulation.outcome import Outcome
from optuna_deadline.simulation.provider import Funding
from optuna_deadline.simulation.study import Simulation, simulate
from optuna_deadline.simulation.workload import Workload

__all__ = [
    "ANTI",
    "FAMILIES",
    "LINEAR",
    "SUBLINEAR",
    "Cluster",
    "Faults",
    "Funding",
    "Outcome",
    "Simulation",
    "Workload",
    "generate",
    "simulate",
]
