"""The ranks of a gang on one host listen on its loopback alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from optuna_deadline.worker.devices import free_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the loopback is named lo")


def listening() -> list[str]:
    """The addresses on which this process accepts connections."""
    found = psutil.Process().net_connections("inet")
    return sorted(one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN)


def with_torch() -> None:
    import torch
    from optuna_deadline_torch.ranks import connect

    connect(torch.device("cpu"))
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    assert total == 2


def with_lightning() -> None:
    import lightning as L
    from lightning.fabric.plugins.environments import LightningEnvironment
    from lightning.pytorch.demos.boring_classes import BoringModel
    from optuna_deadline_torch.ranks import serve_store

    serve_store()  # as DeadlineCallback.trainer_options() does
    options: dict[str, Any] = {"logger": False, "enable_checkpointing": False}
    L.Trainer(
        max_steps=2, accelerator="cpu", devices=2, strategy="ddp",
        plugins=[LightningEnvironment()], enable_progress_bar=False, **options,
    ).fit(BoringModel())  # fmt: skip


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("train", [with_torch, with_lightning])
def test_no_rank_listens_to_other_hosts(train: Any, tmp_path: Path) -> None:
    port = free_port()
    ranks = []
    for rank in (1, 0):  # a client may come before the server
        environment = {
            "RANK": rank, "LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": 2,
            "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        ranks.append(
            subprocess.Popen(
                [sys.executable, __file__, train.__name__],
                env={**os.environ, **{name: str(value) for name, value in environment.items()}},
                cwd=tmp_path,
                stdout=subprocess.PIPE,
            )
        )
    for number, process in enumerate(ranks):
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        addresses = json.loads(output.splitlines()[-1])
        assert set(addresses) <= {"127.0.0.1"}
        assert number == 0 or addresses, "rank 0 serves the store"


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print(json.dumps(listening()))
    import torch.distributed as dist

    dist.barrier()
    dist.destroy_process_group()
