"""The oracle bounds what the others reach."""

from __future__ import annotations

import pytest

from benchmarks.accuracy.oracle import foresee
from optuna_deadline.policies import make_policy
from optuna_deadline.simulation import LINEAR, Cluster, generate, simulate


@pytest.mark.parametrize("family", ["power-law", "crossing"])
def test_nobody_beats_the_oracle(family: str) -> None:
    workload = generate(family, 1, configurations=16, steps=20)
    cluster, deadline = Cluster(slots=2, speedup=LINEAR), 1.5 * workload.full_seconds
    oracle, first = foresee(workload, cluster, deadline)
    best = simulate(oracle, first, cluster, deadline=deadline)
    assert best.regret == pytest.approx(0.0, abs=0.02) and best.trials == 1
    for name in ("fifo", "hypersched", "hermes"):
        other = simulate(make_policy(name, {}), workload, cluster, deadline=deadline)
        assert other.value is not None and best.value is not None
        assert other.value <= best.value
