"""How many nodes a study asks for, which it lets go of, and what one without slots hears."""

from __future__ import annotations

from typing import Any

import pytest
from optuna_deadline_ray.nodes import (
    Node,
    bundles,
    check_some,
    nodes_to_release,
    nodes_with_slots,
    wanted_slots,
)

from optuna_deadline.allocation.records import Slot, StudyClaim
from optuna_deadline.allocation.table.memory import MemoryTable
from optuna_deadline.errors import DeadlineError


def listed(name: str, host: str, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {
        "NodeID": name * 10, "NodeManagerHostname": host, "Alive": alive, "Resources": resources,
    }  # fmt: skip


def test_nodes_that_live_and_have_gpus_bring_them() -> None:
    seen = [
        listed("a", "one", GPU=4.0, CPU=8.0),
        listed("b", "two", CPU=8.0),
        listed("c", "three", alive=False, GPU=4.0),
    ]
    assert nodes_with_slots(seen, None) == [Node("a" * 10, "one", 4)]
    assert [(n.host, n.slots) for n in nodes_with_slots(seen, 8)] == [("one", 8), ("two", 8)]
    assert nodes_with_slots(seen, 9) == []


def test_nodes_of_one_machine_are_hosts_of_their_own() -> None:
    seen = [listed("a", "vm", GPU=1.0), listed("b", "vm", GPU=1.0)]
    assert [n.host for n in nodes_with_slots(seen, None)] == ["vm-aaaaaaaa", "vm-bbbbbbbb"]


def test_a_cluster_without_gpus_gets_one_sentence() -> None:
    with pytest.raises(DeadlineError, match=r"has no GPU: start nodes that have some, pass"):
        check_some([], None, may_grow=False)
    with pytest.raises(DeadlineError, match="No node of this Ray cluster has 9 CPUs"):
        check_some([], 9, may_grow=False)
    check_some([], None, may_grow=True)


def test_whole_nodes_are_asked_for() -> None:
    assert bundles(5, 4, "GPU") == [{"GPU": 4}, {"GPU": 4}]
    assert bundles(0, 4, "GPU") == []


def slot(number: int, host: str, holder: str | None = None) -> Slot:
    return Slot(number, host, "gpu:0", "pool", 1, 1, holder, None, None, None)


def test_only_idle_nodes_beyond_what_is_wanted_are_let_go() -> None:
    nodes = [Node("1", "a", 2), Node("2", "b", 2), Node("3", "c", 2)]
    held = [slot(1, "a", "w"), slot(2, "b"), slot(3, "c")]
    assert nodes_to_release(nodes, held, wanted=6) == []
    assert [n.host for n in nodes_to_release(nodes, held, wanted=4)] == ["c"]
    assert [n.host for n in nodes_to_release(nodes, held, wanted=3)] == ["c"]
    assert [n.host for n in nodes_to_release(nodes, held, wanted=0)] == ["c", "b"]


def test_a_study_wants_what_its_planner_says() -> None:
    table = MemoryTable("pool", 1, now=lambda: 0.0, deadline=100.0)
    assert wanted_slots(table, 8) == 1, "nobody has planned yet"
    table.register("me", "host", 1, [], 2)
    term = table.elect_planner("me")
    assert term is not None
    table.set_claim("me", term, StudyClaim(live=5, most=5, done=0.0, remaining=None))
    assert wanted_slots(table, 8) == 5 and wanted_slots(table, 4) == 4
    table.resize_pool("me", term, 6, 100.0)
    assert wanted_slots(table, 8) == 6, "who pays says how many it buys"
    table.resize_pool("me", term, 0, 50.0)
    assert wanted_slots(table, 8) == 1, "somebody has to settle the study"
    table.settle("me", term)
    assert wanted_slots(table, 8) == 0
