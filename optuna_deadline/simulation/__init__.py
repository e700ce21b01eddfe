"""The production planning loop and policies on a virtual clock, with simulated workers."""

from __future__ import annotations

from optuna_deadline.simulation.cluster import ANTI, LINEAR, SUBLINEAR, Cluster, Faults, Funding
from optuna_deadline.simulation.comparison import Comparison, compare
from optuna_deadline.simulation.pool import PoolOutcome, PoolSimulation, PoolStudy
from optuna_deadline.simulation.study import Outcome, Simulation, simulate
from optuna_deadline.simulation.workload import FAMILIES, Workload, generate

__all__ = [
    "ANTI",
    "FAMILIES",
    "LINEAR",
    "SUBLINEAR",
    "Cluster",
    "Comparison",
    "Faults",
    "Funding",
    "Outcome",
    "PoolOutcome",
    "PoolSimulation",
    "PoolStudy",
    "Simulation",
    "Workload",
    "compare",
    "generate",
    "simulate",
]
