"""Other methods to change the number of processes: relaunching, torchrun, ddp_spawn.

Each trains some steps, saves, ends, and starts again with the other number. Run as a module, this
is the program that they launch.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning as L

from benchmarks.rescale import training

_STEPS = 8  # between two changes


class SaveAt(L.Callback):
    """Saves at the last step, with the same state as ours."""

    def __init__(self, step: int, path: Path) -> None:
        self._step, self._path = step, path

    def on_train_batch_end(self, trainer: L.Trainer, *arguments: Any) -> None:
        """Save on all ranks."""
        if trainer.global_step == self._step:
            trainer.save_checkpoint(self._path)


def fit(folder: Path, until: int, ranks: int, strategy: str) -> None:
    """Train up to a step, from the last saved one."""
    resume = folder / f"{until - _STEPS}.ckpt"
    trainer = L.Trainer(
        max_steps=until,
        accelerator="cpu",
        devices=ranks,
        strategy=strategy if ranks > 1 else "auto",
        limit_val_batches=0,
        callbacks=[
            training.Notes(folder / "notes.jsonl"),
            SaveAt(until, folder / f"{until}.ckpt"),
        ],
        **training.quiet(),
    )
    path = str(resume) if resume.exists() else None
    trainer.fit(training.Net(), training.loader(training.BATCH // ranks), ckpt_path=path)


def relaunch(folder: Path, until: int, ranks: int) -> None:
    """Start a new process for each rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    processes = []
    for rank in range(ranks):
        own = {**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0"}
        environment = own if ranks > 1 else dict(os.environ)
        processes.append(subprocess.Popen(_program(folder, until, ranks), env=environment))
    _all_well([process.wait() for process in processes])


def torchrun(folder: Path, until: int, ranks: int) -> None:
    """Start torchrun anew for each number of processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    program = _program(folder, until, ranks)[1:]
    _all_well([subprocess.call([*launcher, f"--nproc-per-node={ranks}", *program])])


def spawn(folder: Path, until: int, ranks: int) -> None:
    """Use Lightning's ddp_spawn in one process."""
    fit(folder, until, ranks, "ddp_spawn")


def measure(way: Callable[[Path, int, int], None], changes: int) -> Iterator[tuple[str, float]]:
    """The seconds from step to step at each change between one and two processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(changes + 1):
            way(folder, (number + 1) * _STEPS, 1 + number % 2)
        steps = [note for note in training.read(folder / "notes.jsonl") if note["what"] == "step"]
        for last, first in pairwise(steps):
            if last["ranks"] != first["ranks"]:
                yield f"{last['ranks']} -> {first['ranks']}", first["at"] - last["at"]


def _program(folder: Path, until: int, ranks: int) -> list[str]:
    return [sys.executable, "-m", __spec__.name, str(folder), str(until), str(ranks)]


def _all_well(codes: Sequence[int]) -> None:
    if any(codes):
        raise RuntimeError(f"The launched training failed: exit codes {list(codes)}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("until", type=int)
    parser.add_argument("ranks", type=int)
    given = parser.parse_args()
    fit(given.folder, given.until, given.ranks, "ddp")
