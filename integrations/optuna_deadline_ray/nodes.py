"""The nodes of a Ray cluster with slots, how many a study wants, and which to release."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna_deadline.allocation.records import Slot
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.errors import DeadlineError


@dataclass(frozen=True)
class Node:
    """A live node and the slots that its agent holds."""

    id: str  #: Ray's id
    host: str  #: the name of its slots in the table
    slots: int


def nodes_with_slots(listed: Sequence[Mapping[str, Any]], cpus: int | None) -> list[Node]:
    """The live nodes with slots, by host name.

    Args:
        listed: The result of ``ray.nodes()``.
        cpus: CPU slots on each node, which must have as many; None takes all of its GPUs.
    """
    alive = [node for node in listed if node["Alive"]]
    names = Counter(node["NodeManagerHostname"] for node in alive)
    found = []
    for node in alive:
        resources, name = node["Resources"], node["NodeManagerHostname"]
        slots = int(resources.get("GPU", 0))
        if cpus is not None:
            slots = cpus if resources.get("CPU", 0) >= cpus else 0
        if slots:
            # Several nodes on one machine, as in a cluster for tests, are separate hosts.
            host = name if names[name] == 1 else f"{name}-{node['NodeID'][-8:]}"
            found.append(Node(node["NodeID"], host, slots))
    return sorted(found, key=lambda node: node.host)


def check_some(nodes: Sequence[Node], cpus: int | None, may_grow: bool) -> None:
    """Check that there is a node to train on.

    Raises:
        DeadlineError: There is none; the message says what to do.
    """
    if nodes or may_grow:
        return
    if cpus is None:
        raise DeadlineError(
            "This Ray cluster has no GPU: start nodes that have some, pass cpus=2 to train on two "
            "CPU slots of each node, or max_nodes= and node_slots= to have Ray add some."
        )
    raise DeadlineError(f"No node of this Ray cluster has {cpus} CPUs; pass a smaller cpus=.")


def wanted_slots(table: AllocationTable, ceiling: int) -> int:
    """The slots that the study's plan would use if it could have up to ``ceiling``.

    With a budget, these are the slots that its policy buys, otherwise those it could use. At least
    one until the study is settled, because a worker has to settle it.
    """
    orders = table.orders("")
    if orders.settled:
        return 0
    if orders.pool_slots is not None:
        return min(ceiling, max(1, orders.pool_slots))
    claim = next((row.claim for row in table.tenants() if row.study_id == table.study_id), None)
    return 1 if claim is None else min(ceiling, max(1, claim.most))


def bundles(slots: int, node_slots: int, kind: str) -> list[dict[str, float]]:
    """The request to Ray's autoscaler: whole nodes with this number of slots in all."""
    return [{kind: node_slots} for _ in range(-(-slots // node_slots))]


def nodes_to_release(nodes: Sequence[Node], slots: Collection[Slot], wanted: int) -> list[Node]:
    """The nodes to release: those beyond what is wanted on which nothing trains.

    Args:
        nodes: The study's nodes.
        slots: Of its pool.
        wanted: The number of slots that it wants.
    """
    busy = {slot.host for slot in slots if slot.holder is not None}
    left, spare = sum(node.slots for node in nodes), []
    for node in sorted(nodes, key=lambda node: (node.slots, node.host), reverse=True):
        if node.host not in busy and left - node.slots >= wanted:
            left -= node.slots
            spare.append(node)
    return spare
