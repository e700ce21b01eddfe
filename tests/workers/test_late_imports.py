"""The fork server loads what ranks have imported, if that leaves nothing else behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tables import wait_until

from optuna_deadline.rank.fork_server import ForkServer
from optuna_deadline.rank.messages import Returned
from optuna_deadline.rank.objective import source_of
from optuna_deadline.rank.process import LocalRank, RankSpec

OBJECTIVE = """
import sys
def objective(trial):
    known = "wsgiref.simple_server" in sys.modules
    import wsgiref.simple_server
    return float(known)
"""
#: Modules by name, and whether the fork server may load them.
MODULES = {
    "harmless": ("x = 1", True),
    "starts_a_thread": (
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        False,
    ),
    "below": ("import starts_a_thread", False),
    "keeps_a_file_open": ("file = open(__file__)", False),
    "draws": ("import random; random.random()", False),
    "draws_by_numpy": ("import numpy; numpy.random.rand()", False),
    "fails": ("raise RuntimeError", False),
    "exits": ("import os; os._exit(3)", False),
    "hangs": ("import time; time.sleep(60)", False),
    "later": ("x = 1", True),
}
LOAD = """
import os, sys, time
from optuna_deadline.rank import late_imports

def fork(run):
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        run()
        os._exit(0)
    return pid

late_imports._PROBE_SECONDS = 0.5
late = late_imports.LateImports(fork)
late.want(sys.argv[1:])
while late._wanted or late._probing or late.pending:
    late.look()
    if late.pending:
        late.import_next()
    time.sleep(0.01)
print(*(name for name in sys.argv[1:] if name in sys.modules))
"""


def known_at_start(server: ForkServer, folder: Path) -> bool:
    """Fork a rank; returns whether it had the module from the start."""
    spec = RankSpec(
        number=0, rank=0, world_size=1, rendezvous=("127.0.0.1", 1), local=LocalRank(0, 1, 0),
        fence=1, folder=str(folder), store=None, resume=None, devices=("cpu:0",),
        direction="minimize", trusted_until=time.monotonic() + 60, grace=1.0,
    )  # fmt: skip
    link = server.fork((0, 1, 0), spec)
    end = link.recv()
    link.close()
    assert isinstance(end, Returned), end
    return bool(end.value)


def test_a_later_rank_has_what_an_earlier_one_has_imported(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OBJECTIVE)
    server = ForkServer(source_of(f"{tmp_path / 'mine.py'}:objective"))
    try:
        server.wait_until_ready(30)
        assert not known_at_start(server, tmp_path)
        wait_until(lambda: known_at_start(server, tmp_path))
    finally:
        server.close()


def test_what_leaves_more_behind_than_a_module_is_left_to_the_ranks(tmp_path: Path) -> None:
    for name, (source, _) in MODULES.items():
        (tmp_path / f"{name}.py").write_text(source)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", LOAD, *MODULES],
        capture_output=True, text=True, timeout=300, env=environment,
    )  # fmt: skip
    loaded = {name for name, (_, good) in MODULES.items() if good}
    assert set(run.stdout.split()) == loaded, run.stderr


@pytest.mark.slow
def test_torch_has_the_trials_seed_whenever_it_is_imported() -> None:
    pytest.importorskip("torch")
    program = (
        "from optuna_deadline.rank.process import seed_by_trial\n"
        "seed_by_trial(3); import torch; late = torch.rand(4)\n"
        "seed_by_trial(3); print(torch.equal(late, torch.rand(4)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "True", run.stderr
