"""How many nodes a study wants, and which of those that it has it can do without."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from optuna_deadline.allocation.records import Slot
from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline_ray.nodes import Node


def wanted_slots(table: AllocationStore, ceiling: int) -> int:
    """The slots that the study's plan would use, if it could have up to ``ceiling``.

    Where slots cost money it is what its policy buys; elsewhere what it would find work for. One
    at least, as long as the study is not settled: somebody has to do that.
    """
    orders = table.orders("")
    if orders.settled:
        return 0
    if orders.pool_slots is not None:
        return min(ceiling, max(1, orders.pool_slots))
    said = next((row.claim for row in table.tenants() if row.study_id == table.study_id), None)
    return 1 if said is None else min(ceiling, max(1, said.most))


def bundles(slots: int, node_slots: int, kind: str) -> list[dict[str, float]]:
    """What to ask Ray's autoscaler for: whole nodes that hold so many slots in all."""
    return [{kind: node_slots} for _ in range(-(-slots // node_slots))]


def to_spare(nodes: Sequence[Node], slots: Collection[Slot], wanted: int) -> list[Node]:
    """The nodes to let go of: those beyond what is wanted on which nothing trains.

    Args:
        nodes: Those that the study has.
        slots: Of its pool.
        wanted: How many it wants.
    """
    busy = {slot.host for slot in slots if slot.holder is not None}
    left, spare = sum(node.slots for node in nodes), []
    for node in sorted(nodes, key=lambda node: (node.slots, node.host), reverse=True):
        if node.host not in busy and left - node.slots >= wanted:
            left -= node.slots
            spare.append(node)
    return spare
