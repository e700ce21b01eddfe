"""The time of a safe checkpoint against a bare ``torch.save``, and the time that training waits.

Each round runs all methods in a new random order, each into its own file on the same disk.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from optuna_deadline_torch.saver import CheckpointSaver
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import Progress, machine, output_file, write_json
from optuna_deadline.checkpoints.files import Checkpoint, intact
from optuna_deadline.rank.messages import Message, Saved
from optuna_deadline.rank.trial import RankSegment

TARGET = 2.0
BARE, SYNCED, STOCK = "torch.save", "torch.save and fsync", "Lightning's own"
WAITED, STILL, BESIDE = "ours, blocking", "ours, background: stop", "ours, background"
VERIFIED = "ours, verified before it is resumed"
WAYS = (BARE, SYNCED, STOCK, WAITED, STILL, BESIDE, VERIFIED)


class _Ear:
    """The worker's end of a rank's pipe."""

    def __init__(self) -> None:
        self.last: Saved | None = None

    def send(self, message: Message) -> None:
        if not isinstance(message, Saved):
            raise RuntimeError(f"the disk failed: {message}")
        self.last = message


def measure(megabytes: int, rounds: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """The seconds of every method, and ours relative to ``torch.save`` in the same round."""
    count = 48  # tensors
    state = {f"layer{i}": torch.randn(megabytes * 2**18 // count) for i in range(count)}
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    drawing, progress, ear = random.Random(seed), Progress(), _Ear()
    segment = RankSegment(
        ear,  # type: ignore[arg-type]
        rank=0, world_size=1, fence=1, folder=folder, resume=None, direction="minimize",
    )  # fmt: skip
    saver = CheckpointSaver(segment)
    try:
        for number in range(rounds + 1):
            progress.write_progress(f"round {number} of {rounds}")
            for way, taken in _round(state, folder, drawing, saver, ear):
                if number:  # the first round fills the allocator and the disk's cache
                    seconds[way].append(taken)
    finally:
        progress.end()
    ratios = [a / b for a, b in zip(seconds[WAITED], seconds[BARE], strict=True)]
    return {
        "ratio": round(statistics.median(ratios), 2),
        "target": TARGET,
        "megabytes": megabytes,
        "rounds": rounds,
        "rows": [_row(way, seconds[way]) for way in WAYS],
        "machine": machine("torch", "lightning"),
    }


def _row(way: str, seconds: list[float]) -> dict[str, Any]:
    return {
        "way": way,
        "median_s": round(statistics.median(seconds), 3),
        "least_s": round(min(seconds), 3),
        "most_s": round(max(seconds), 3),
    }


def _round(
    state: dict[str, torch.Tensor],
    folder: Path,
    drawing: random.Random,
    saver: CheckpointSaver,
    ear: _Ear,
) -> list[tuple[str, float]]:
    path = folder / "bare.ckpt"

    def bare() -> None:
        torch.save(state, path)

    def synced() -> None:
        torch.save(state, path)
        with open(path, "rb+") as file:
            os.fsync(file.fileno())

    def waited() -> None:
        saver.save(state, "ours.ckpt", step=1, value=None, wait=True)

    def beside() -> list[tuple[str, float]]:
        began = time.perf_counter()
        saver.save(state, "ours.ckpt", step=1, value=None, wait=False)
        still = time.perf_counter() - began
        saver.wait()
        taken = [(STILL, still), (BESIDE, time.perf_counter() - began)]
        last = ear.last
        assert last is not None
        row = Checkpoint(1, 1, 1, None, Path(last.path), last.size, last.checksum)
        taken.append((VERIFIED, _timed(lambda: intact(row))))
        return taken

    ways: list[Callable[[], list[tuple[str, float]]]] = [
        lambda: [(BARE, _timed(bare))],
        lambda: [(SYNCED, _timed(synced))],
        lambda: [(STOCK, _timed(lambda: TorchCheckpointIO().save_checkpoint(state, path)))],
        lambda: [(WAITED, _timed(waited))],
        beside,
    ]
    drawing.shuffle(ways)
    taken = []
    for way in ways:
        for file in folder.iterdir():
            file.unlink()
        os.sync()  # so that no method pays for another's unwritten data
        taken += way()
    return taken


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.checkpoint_cost", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="64 MB in place of 1024")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="where to write figures")
    parser.add_argument("--folder", type=Path, help="on which disk; the temporary one by default")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)  # as a rank on a CPU slot
    with tempfile.TemporaryDirectory(prefix="checkpoint-cost-", dir=given.folder) as folder:
        result = measure(64 if given.quick else 1024, given.rounds, Path(folder))
    table = Table(f"{result['megabytes']} MB", "median", "least", "most", title="seconds")
    for row in result["rows"]:
        table.add_row(
            row["way"], *(f"{row[f'{what}_s']:.3f}" for what in ("median", "least", "most"))
        )
    Console(width=90).print(table)
    print(f"ours by torch.save: {result['ratio']:.2f} (target: {TARGET:g})")
    write_json(given.json, result)


if __name__ == "__main__":
    main()
