"""What runs in a worker's pod, run here: the script, its worker, and the word at its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from cluster_api import Asked, cluster_api
from manifests import ROOT
from tables import wait_until

from optuna_deadline.elastic import agree
from optuna_deadline.history.reader import table_of

pytestmark = [pytest.mark.slow, pytest.mark.nightly_but(r"taken_away")]
OBJECTIVE = """
import time

def objective(trial, segment=None):
    rate = trial.suggest_float("rate", 0.1, 1.0)
    for step in range(10_000):
        time.sleep(0.05)
        trial.report(rate * step, step)
        if trial.should_prune():
            return rate
    return rate
"""


@pytest.fixture
def study(sqlite_url: str) -> optuna.Study:
    return optuna.create_study(storage=sqlite_url, study_name="digits", direction="maximize")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[tuple[int, Asked]]:
    with cluster_api(tmp_path, "a token") as known:
        yield known


def start(tmp_path: Path, url: str, port: int) -> subprocess.Popen[str]:
    (tmp_path / "train.py").write_text(OBJECTIVE)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = dict(
        os.environ, PATH=path, OBJECTIVE="train.py:objective", STUDY="digits",
        OPTUNA_DEADLINE_STORAGE=url,
        SLOTS="--cpus 1", CHECKPOINTS=str(tmp_path / "kept"), NAMESPACE="lab",
        OPTUNA_DEADLINE_HOST="optuna-deadline-worker-0", ACCOUNT=str(tmp_path),
        OPTUNA_DEADLINE_PULSE=str(tmp_path / "pulse"), KUBERNETES_SERVICE_HOST="127.0.0.1",
        KUBERNETES_SERVICE_PORT=str(port),
    )  # fmt: skip
    words = ["sh", str(ROOT / "base" / "work.sh")]
    return subprocess.Popen(words, env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True)


def test_when_the_study_is_over_no_pods_are_wanted(
    study: optuna.Study, sqlite_url: str, tmp_path: Path, api: tuple[int, Asked]
) -> None:
    port, asked = api
    agree(study, "8s")
    pod = start(tmp_path, sqlite_url, port)
    output, _ = pod.communicate(timeout=300)
    assert pod.returncode == 0, output
    path = "/apis/apps/v1/namespaces/lab/statefulsets/optuna-deadline-worker/scale"
    assert asked == [(path, {"spec": {"replicas": 0}})]
    assert not (tmp_path / "pulse").exists()


def test_a_pod_that_is_taken_away_saves_and_asks_for_nothing(
    study: optuna.Study, sqlite_url: str, tmp_path: Path, api: tuple[int, Asked]
) -> None:
    port, asked = api
    agree(study, "100s")
    pod = start(tmp_path, sqlite_url, port)
    table, _ = table_of(study)
    wait_until(lambda: bool(table.reports()) and (tmp_path / "pulse").exists())
    pod.send_signal(signal.SIGTERM)
    output, _ = pod.communicate(timeout=300)
    assert pod.returncode == 130, output
    assert asked == [] and not (tmp_path / "pulse").exists()
    assert not any(line.owner for line in table.trials())
