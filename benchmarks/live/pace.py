"""The seconds of an epoch of the demo's networks on one slot, while all slots train."""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from optuna_deadline.errors import DeadlineError

Paces = Mapping[int, float]  #: seconds of an epoch, by the network's width

WIDTHS = (16, 20, 24)
_EPOCHS = 6  #: the first one does not count


def paces(slots: int) -> Paces:
    """Train each network on every slot at once; return the mean over slots of the medians."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.live.pace"], stdout=subprocess.PIPE, text=True
        )
        for _ in range(slots)
    ]
    answers = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise DeadlineError("The demo's network did not train; its extra has to be installed.")
    found = [[float(word) for word in answer.split()] for answer in answers]
    means = map(statistics.fmean, zip(*found, strict=True))
    return dict(zip(WIDTHS, means, strict=True))


def main() -> None:
    """Print the seconds of each width in one line."""
    import lightning as L
    import torch
    from optuna_deadline_demo.digits import Digits, Net
    from optuna_deadline_demo.training import QUIET, hush

    class Clock(L.Callback):
        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_train_epoch_end(self, *_: Any) -> None:
            self.ends.append(time.perf_counter())

    hush()
    torch.set_num_threads(1)
    found = []
    for width in WIDTHS:
        clock = Clock()
        trainer = L.Trainer(max_epochs=_EPOCHS, callbacks=[clock], accelerator="cpu", **QUIET)
        trainer.fit(Net(width, 0.1, 0.01, 1e-4), datamodule=Digits())
        ends = clock.ends
        found.append(statistics.median(b - a for a, b in itertools.pairwise(ends)))
    print(*found)


if __name__ == "__main__":
    main()
