"""Ask Syne Tune's process to run a study, which is sent as one line of JSON."""

from __future__ import annotations

import json
import math
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from benchmarks.accuracy.search import as_in, space_of
from optuna_deadline.errors import DeadlineError
from optuna_deadline.simulation import Cluster
from optuna_deadline.simulation.workload import Workload

#: Schedulers that take configurations in order, and those that choose by hyper-parameters.
IN_ORDER = ("syne_asha", "syne_asha_promote", "syne_pasha")
SEARCHING = ("syne_dyhpo", "syne_asha_cqr")
SYNE_TUNE = (*IN_ORDER, *SEARCHING)


class SyneTune:
    """A process with Syne Tune that answers one request after the other.

    Args:
        python: The Python interpreter of its environment.

    Raises:
        DeadlineError: Syne Tune does not start there.
    """

    def __init__(self, python: str) -> None:
        self._python = python
        try:
            self._process = subprocess.Popen(
                [python, str(Path(__file__).with_name("peer.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        except OSError as error:
            raise DeadlineError(f"There is no Python at {python} ({error.strerror}).") from None

    def value(
        self, peer: str, workload: Workload, cluster: Cluster, deadline: float, seed: int
    ) -> float | None:
        """The best score reported by the deadline; None if there was none."""
        asked = question(peer, workload, cluster, deadline, seed)
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except OSError:  # it ended before the request
            answer = ""
        if not answer:
            raise DeadlineError(
                f"{peer} ended without an answer; what {self._python} printed above says why. "
                'It needs "syne-tune[gpsearchers]==0.14.2" and benchmarks/README.md\'s packages.'
            )
        value: float | None = json.loads(answer)["value"]
        return value


@lru_cache(maxsize=1)
def running(python: str) -> SyneTune:
    """The process of Syne Tune; there is one, since its import takes seconds."""
    return SyneTune(python)


def question(
    peer: str, workload: Workload, cluster: Cluster, deadline: float, seed: int
) -> dict[str, Any]:
    """A study as JSON values; only searchers get hyper-parameters."""
    space = space_of(workload) if peer in SEARCHING else {}
    return {
        "peer": peer,
        "seed": seed,
        "slots": cluster.capacity,
        "deadline": deadline,
        "startup": cluster.startup,
        "stop": cluster.stop,
        "curves": [
            [score if math.isfinite(score) else None for score in curve]
            for curve in workload.curves
        ],
        "report_seconds": workload.report_seconds
        or [
            [workload.every * seconds] * len(curve)
            for curve, seconds in zip(workload.curves, workload.step_seconds, strict=True)
        ],
        "space": {name: _plain(kind) for name, kind in space.items()},
        "parameters": [
            {name: as_in(kind, given.get(name)) for name, kind in space.items()}
            for given in workload.hyperparameters or ({},) * len(workload.curves)
        ],
    }


def _plain(kind: BaseDistribution) -> tuple[float, float, bool, list[str]]:
    """Minimum, maximum, whether logarithmic, names; either the range or the names are given."""
    if isinstance(kind, CategoricalDistribution):
        return 0.0, 0.0, False, [str(name) for name in kind.choices]
    assert isinstance(kind, FloatDistribution)
    return kind.low, kind.high, kind.log, []
