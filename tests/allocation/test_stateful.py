"""No sequence of transitions and faults breaks the promise, and each mutant is found out.

Four times the profile's examples are tried in memory; PostgreSQL gets a fifth of them.
``OPTUNA_DEADLINE_EXAMPLES`` sets another number.
"""

from __future__ import annotations

import inspect
import os

import mutants
import pytest
from allocation.suite import AllocationStoreTestCase
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from machine import AllocationMachine
from model import ModelWorker
from stores import memory_world, sql_world

from optuna_deadline.allocation.table import AllocationTable

pytestmark = [
    pytest.mark.timeout(600),  # counted in examples; a busy machine takes its time
    pytest.mark.slow_names("postgresql"),
]

EXAMPLES = int(os.environ.get("OPTUNA_DEADLINE_EXAMPLES", 4 * settings().max_examples))


def run(machine: type[AllocationMachine], examples: int) -> None:
    """Try sequences; the same ones in each run, and no time limit but the number of examples."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            phases=(Phase.generate,),
            derandomize=True,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def in_memory(
    store: type[AllocationTable] = AllocationTable, worker: type[ModelWorker] = ModelWorker
) -> type[AllocationMachine]:
    class Machine(AllocationMachine):
        make_world = staticmethod(lambda: memory_world(store))
        worker_kind = worker

    return Machine


def test_I1_no_slot_and_no_trial_ever_has_two_users_in_memory() -> None:
    run(in_memory(), EXAMPLES)


@pytest.mark.postgres
def test_I1_no_slot_and_no_trial_ever_has_two_users_on_postgresql(table_only_url: str) -> None:
    class Machine(AllocationMachine):
        make_world = staticmethod(lambda: sql_world(table_only_url))

    run(Machine, EXAMPLES // 20)


@pytest.mark.parametrize("store", mutants.STORES, ids=lambda kind: kind.__name__)
def test_a_store_without_one_of_its_guards_is_found_out(store: type[AllocationTable]) -> None:
    with pytest.raises(AssertionError):
        run(in_memory(store), max(EXAMPLES, 400))


@pytest.mark.parametrize("worker", mutants.WORKERS, ids=lambda kind: kind.__name__)
def test_a_worker_that_breaks_the_law_is_found_out(worker: type[ModelWorker]) -> None:
    with pytest.raises(AssertionError):
        run(in_memory(worker=worker), max(EXAMPLES, 400))


@pytest.mark.parametrize(
    "store",
    (*mutants.STORES, *mutants.SHARING, *mutants.ASKING),
    ids=lambda kind: kind.__name__,
)
def test_the_suite_finds_it_out_too(store: type[AllocationTable]) -> None:
    assert failures(store)


def test_the_suite_finds_nothing_in_the_store_itself() -> None:
    assert failures(AllocationTable) == []


def failures(store: type[AllocationTable]) -> list[str]:
    """The tests of the conformance suite that this store fails."""
    found = []
    for name, test in inspect.getmembers(AllocationStoreTestCase, inspect.isfunction):
        if name.startswith("test_") and list(inspect.signature(test).parameters)[1:] == ["world"]:
            try:
                test(AllocationStoreTestCase(), memory_world(store))
            except (Exception, pytest.fail.Exception):
                found.append(name)
    return found
