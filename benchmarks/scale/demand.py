"""The load of a pool of some size on its database per second, counted by operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.scale.database import Cost
from benchmarks.scale.situation import Size
from optuna_deadline.allocation.store import TTL

POLL, STAND, RENEW = 1.0, TTL / 6, TTL / 6  # seconds between two looks, candidacies, renewals
REPORT, SAVE, MOVE = 60.0, 60.0, 600.0  # of a trial in training: our assumption


def rates(size: Size) -> dict[str, float]:
    """Operations per second of all clients together.

    Each worker looks at its orders, renews, and stands for planner and for leader. Each study's
    planner looks every second, most of the time at news; so does the pool's leader. Each slot
    trains a trial of its own that reports every minute, says how far it is as often, and changes
    its slots every ten minutes. A checkpoint costs what a report does.
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
    """Of a whole pool, in each second.

    Attributes:
        statements: Of all clients.
        server_cores: That the database keeps busy with them.
        parts: The statements, by client and purpose.
    """

    statements: float
    server_cores: float
    parts: Mapping[str, float]


def demand(size: Size, costs: Mapping[str, Cost]) -> Demand:
    """The sum over all that is done."""
    often = rates(size)
    parts = {name: often[name] * costs[name].statements for name in often}
    cores = sum(often[name] * costs[name].server_ms for name in often) / 1e3
    return Demand(sum(parts.values()), cores, parts)
