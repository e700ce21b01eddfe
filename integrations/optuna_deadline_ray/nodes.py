"""The nodes of a Ray cluster, as far as they have slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna_deadline.errors import DeadlineError


@dataclass(frozen=True)
class Node:
    """A node that lives, and the slots that an agent would hold there."""

    id: str  #: Ray's
    host: str  #: the name of its slots in the table
    slots: int


def nodes_with_slots(listed: Sequence[Mapping[str, Any]], cpus: int | None) -> list[Node]:
    """The living nodes that have slots, by their host names.

    Args:
        listed: What ``ray.nodes()`` says.
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
            # Several nodes of one machine, as in a cluster for tests, are hosts of their own.
            host = name if names[name] == 1 else f"{name}-{node['NodeID'][-8:]}"
            found.append(Node(node["NodeID"], host, slots))
    return sorted(found, key=lambda node: node.host)


def check_some(nodes: Sequence[Node], cpus: int | None, may_grow: bool) -> None:
    """Whether there is anything to train on.

    Raises:
        DeadlineError: There is not; the message says what to do.
    """
    if nodes or may_grow:
        return
    if cpus is None:
        raise DeadlineError(
            "This Ray cluster has no GPU: start nodes that have some, pass cpus=2 to train on two "
            "CPU slots of each node, or max_nodes= and node_slots= to have Ray add some."
        )
    raise DeadlineError(f"No node of this Ray cluster has {cpus} CPUs; pass a smaller cpus=.")
