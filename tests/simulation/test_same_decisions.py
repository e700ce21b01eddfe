"""A change of structure changes no decision: audits of simulated studies keep their digests.

`decisions.json` holds a digest of each study's audit. A change that decides otherwise on purpose
writes it anew with `OPTUNA_DEADLINE_RECORD=1 pytest tests/simulation/test_same_decisions.py`, and
its commit says why. NumPy draws the curves, so the digests hold for the versions that wrote them.
The rival SLAQ has none: its fits are rounded differently by other processors.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from benchmarks.rivals import RIVALS, make_policy
from optuna_deadline.policies import known_policies
from optuna_deadline.simulation import Cluster, Faults, Funding, Simulation, generate
from optuna_deadline.simulation.study import events

pytestmark = [
    pytest.mark.nightly_but(r"adaptive_halving-0"),
    pytest.mark.slow_names(r"\[(seer|adaptive_halving)-0|-[12]\]"),
]

DIGESTS = Path(__file__).with_name("decisions.json")
VERSIONS = {
    "python": ".".join(map(str, sys.version_info[:2])),
    "numpy": numpy.__version__,
}
FREE = Cluster(slots=4, startup=3.0)
SETTINGS: dict[str, dict[str, Any]] = {
    "free": {"cluster": FREE},
    "paid": {
        "cluster": Cluster(slots=1, startup=3.0),
        "funding": Funding(budget=1500.0, startup=10.0, minimum=20.0, offer=6),
    },
    "faults": {
        "cluster": Cluster(
            slots=2,
            hosts=2,
            startup=3.0,
            ttl=10.0,
            grace=5.0,
            faults=Faults(crash_every=200.0, host_every=300.0, reboot=20.0, straggler_share=0.2),
        )
    },
    "gangs": {"cluster": Cluster(slots=1, hosts=4, startup=2.0, across=0.9)},
}


def digest(policy: str, setting: str, seed: int) -> str:
    """Of all events of a study, in their order."""
    workload = generate("crossing", seed, configurations=24, steps=27, step_seconds=4.0)
    study = Simulation(
        make_policy(policy, {"max_resource": workload.steps}),
        workload,
        deadline=5 * workload.full_seconds,
        seed=seed,
        **SETTINGS[setting],
    )
    study.run()
    found = hashlib.sha256()
    for event in events(study.world):
        decided = {name: value for name, value in event.detail.items() if name != "kept"}  # a path
        detail = json.dumps(decided, sort_keys=True, default=str)
        found.update(
            f"{event.at:.4f} {event.kind} {event.number} {event.slot} {event.fence} "
            f"{event.term} {event.worker} {detail}\n".encode()
        )
    return found.hexdigest()[:16]


def digests(policy: str, seed: int) -> dict[str, str]:
    """By setting."""
    return {setting: digest(policy, setting, seed) for setting in SETTINGS}


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
@pytest.mark.parametrize("policy", sorted({*known_policies(), *RIVALS} - {"slaq"}))
def test_a_policy_decides_as_recorded(policy: str, seed: int) -> None:
    recorded = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}
    if os.environ.get("OPTUNA_DEADLINE_RECORD"):
        assert "PYTEST_XDIST_WORKER" not in os.environ, "two processes would write one file"
        recorded["versions"] = VERSIONS
        for setting, found in digests(policy, seed).items():
            recorded.setdefault(policy, {}).setdefault(setting, [""] * 3)[seed] = found
        DIGESTS.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
        return
    if recorded["versions"] != VERSIONS:
        pytest.skip(f"the digests are of {recorded['versions']}")
    assert digests(policy, seed) == {
        setting: found[seed] for setting, found in recorded[policy].items()
    }
