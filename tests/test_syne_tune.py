"""Syne Tune's schedulers on our tables; what runs them is skipped where nobody names their Python.

``SYNE_TUNE_PYTHON`` is the interpreter of an environment as benchmarks/README.md makes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from benchmarks.accuracy.runs import Case, Setting
from benchmarks.syne_tune.asking import IN_ORDER, SEARCHING, SYNE_TUNE, SyneTune, question
from optuna_deadline.errors import DeadlineError
from optuna_deadline.simulation import Cluster, Workload
from optuna_deadline.simulation.tables import own

CLUSTER = Cluster(slots=4, startup=29.0, stop=1.0)


@pytest.fixture(scope="module")
def syne_tune() -> Iterator[SyneTune]:
    python = os.environ.get("SYNE_TUNE_PYTHON")
    if python is None:
        pytest.skip("SYNE_TUNE_PYTHON names no Python with Syne Tune")
    yield SyneTune(python)


def _small() -> Workload:
    """The first configurations of our own recording, without their last steps."""
    whole = own()[0]
    return Workload(
        "small",
        tuple(curve[:9] for curve in whole.curves[:30]),
        (60.0,) * 30,
        whole.hyperparameters[:30],
    )


def test_who_is_asked_in_no_environment_says_which_option_names_one() -> None:
    case = Case("syne_asha", "recorded/digits", 0, Setting(4, 4, 0.5), None)
    with pytest.raises(DeadlineError, match="--syne-tune-python"):
        case.run()
    with pytest.raises(DeadlineError, match="no Python at /nowhere"):
        SyneTune("/nowhere")


def test_only_who_searches_is_told_hyperparameters() -> None:
    told = json.loads(json.dumps(question(SEARCHING[0], _small(), CLUSTER, 1e4, 0)))
    assert told["space"].keys() == told["parameters"][0].keys() != set()
    assert question(IN_ORDER[0], _small(), CLUSTER, 1e4, 0)["space"] == {}


def test_a_report_counts_if_it_is_there_by_the_deadline(syne_tune: SyneTune) -> None:
    scores = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    alone = Workload("alone", (scores, scores), (60.0, 60.0))
    one = Cluster(slots=1, startup=29.0, stop=1.0)
    for steps, score in enumerate(scores, 1):
        end = one.startup + 60.0 * steps
        for peer in IN_ORDER[:1]:
            assert syne_tune.value(peer, alone, one, end + 1.0, 0) == score
            before = scores[steps - 2] if steps > 1 else None
            assert syne_tune.value(peer, alone, one, end - 1.0, 0) == before


@pytest.mark.slow
@pytest.mark.parametrize("peer", SYNE_TUNE)
def test_a_peer_finds_something_of_the_table_and_the_same_again(
    peer: str, syne_tune: SyneTune
) -> None:
    workload = _small()
    deadline = 2 * workload.full_seconds
    found = syne_tune.value(peer, workload, CLUSTER, deadline, 1)
    assert found in {score for curve in workload.curves for score in curve}
    assert found == syne_tune.value(peer, workload, CLUSTER, deadline, 1)


@pytest.mark.parametrize("peer", IN_ORDER)
def test_configurations_come_in_the_order_of_the_study(peer: str, syne_tune: SyneTune) -> None:
    falling = Workload("falling", tuple(((30.0 - n) / 30,) * 9 for n in range(30)), (60.0,) * 30)
    best_last = Workload("rising", tuple((n / 30,) * 9 for n in range(30)), (60.0,) * 30)
    first = CLUSTER.startup + 61.0  # after the first report of the first four
    assert syne_tune.value(peer, falling, CLUSTER, first, 0) == 1.0
    assert syne_tune.value(peer, best_last, CLUSTER, first, 0) == 3 / 30
