"""The GPUs that a worker offers and a rank sees: driver, CUDA_VISIBLE_DEVICES, MIG."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from benchmarks.gpu_check.watching import Row, row
from optuna_deadline.errors import DeadlineError
from optuna_deadline.worker.devices import gpu_uuids, make_offer

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def measure() -> list[Row]:
    """Rows for the GPUs; if there is none, one row that says so."""
    before = os.environ.get(_VISIBLE)
    with _visible(None):
        uuids = gpu_uuids()
    if not uuids:
        return [row("GPUs that the driver lists", 0, True)]
    rows = [row("GPUs that the driver lists", len(uuids), True)]
    first, uuid = next(iter(uuids.items()))
    for name, value, expected in (
        ("its index", str(first), {first}),
        ("its uuid", uuid, {first}),
        ("nothing", "", set[int]()),
    ):
        with _visible(value):
            rows.append(
                row(
                    f"{_VISIBLE} is {name}: GPUs that a worker would offer",
                    str(sorted(gpu_uuids())),
                    set(gpu_uuids()) == expected,
                )
            )
    seen = _torch_sees({_VISIBLE: str(first), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    same = uuid.removeprefix("GPU-") in seen
    rows.append(row("a rank's only device is the GPU of its slot, by uuid", seen, same))
    parts = _parts()
    rows.append(row("MIG parts that the driver lists", len(parts), True))
    with _visible(parts[0] if parts else "MIG-of-no-machine"):
        try:
            make_offer("all")
        except DeadlineError as error:
            rows.append(row("a MIG part is refused in words", str(error), "MIG" in str(error)))
        else:
            rows.append(row("a MIG part is refused in words", None, False))
    assert os.environ.get(_VISIBLE) == before
    return rows


def _parts() -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    listed = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=30).stdout
    return [
        line.partition("UUID: ")[2].rstrip(")") for line in listed.splitlines() if "MIG-" in line
    ]


def _torch_sees(environment: Mapping[str, str]) -> str:
    """The uuids of the devices of a process with this environment."""
    code = (
        "import torch; print(*(torch.cuda.get_device_properties(i).uuid"
        " for i in range(torch.cuda.device_count())))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return shown.stdout.strip()


@contextmanager
def _visible(value: str | None) -> Iterator[None]:
    before = os.environ.pop(_VISIBLE, None)
    if value is not None:
        os.environ[_VISIBLE] = value
    try:
        yield
    finally:
        os.environ.pop(_VISIBLE, None)
        if before is not None:
            os.environ[_VISIBLE] = before
