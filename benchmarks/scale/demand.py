"""The load of a pool on its database per second, counted by operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.scale.database import Cost
from benchmarks.scale.situation import Size
from optuna_deadline.allocation.table import TTL

POLL, STAND, RENEW = 1.0, TTL / 6, TTL / 6  # seconds between polls, candidacies, renewals
REPORT, SAVE, MOVE = 60.0, 60.0, 600.0  # seconds of a running trial between them; assumptions


def rates(size: Size) -> dict[str, float]:
    """Operations per second of all clients together.

    Each worker polls its orders, renews, and is a candidate for planner and leader. Each study's
    planner and the pool's leader poll every second. Each slot trains its own trial, which reports
    and writes its progress every minute and changes its slots every ten minutes. A checkpoint
    costs as much as a report.
    """
    trained = float(size.capacity)
    return {
        "orders": size.workers / POLL,
        "renew": size.workers / RENEW,
        "stand for planner": size.workers / STAND,
        "stand for leader": size.workers / STAND,
        "report": trained / REPORT + trained / SAVE,
        "progress": trained / REPORT,
        "move": trained / MOVE,
        "plan": size.studies / POLL,
        "divide": 1.0 / POLL,
    }


@dataclass(frozen=True)
class Demand:
    """The load of a whole pool per second.

    Attributes:
        statements: The statements of all clients.
        server_cores: The cores that the database uses for them.
        parts: The statements by client and purpose.
    """

    statements: float
    server_cores: float
    parts: Mapping[str, float]


def demand(size: Size, costs: Mapping[str, Cost]) -> Demand:
    """The sum over all operations."""
    often = rates(size)
    parts = {name: often[name] * costs[name].statements for name in often}
    cores = sum(often[name] * costs[name].server_ms for name in often) / 1e3
    return Demand(sum(parts.values()), cores, parts)
