"""What the benchmark asks Syne Tune's schedulers, and its errors."""

from __future__ import annotations

import json

import pytest

from benchmarks.accuracy.runs import Case, Setting
from benchmarks.syne_tune.asking import IN_ORDER, SEARCHING, SyneTune, question
from optuna_deadline.errors import DeadlineError
from optuna_deadline.simulation import Cluster, Workload
from optuna_deadline.simulation.tables import own

CLUSTER = Cluster(slots=4, startup=29.0, stop=1.0)


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
