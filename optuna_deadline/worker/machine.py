"""What a worker says of its machine: which one it is, where it saves, what is installed."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from optuna_deadline.allocation.records import About
from optuna_deadline.checkpoints.sharing import store_of
from optuna_deadline.checkpoints.storage import Location
from optuna_deadline.rank.processes import own_boot
from optuna_deadline.worker.devices import Offer, gpu_uuids

#: Whose versions must go together on all hosts of a study, where they are installed.
PACKAGES = ("optuna-deadline", "torch", "lightning")

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def describe(
    offer: Offer, root: Location, address: str | None = None, host_type: str | None = None
) -> About:
    """What a worker with this offer says of its machine; it makes the folder for checkpoints."""
    known = gpu_uuids() if offer.gpus else {}
    return About(
        machine=machine(),
        store=store_of(root, machine()),
        versions=versions(),
        uuids={f"gpu:{index}": known[index] for index in offer.gpus if known.get(index)},
        address=address,
        host_type=host_type,
        boot=own_boot(),
    )


def machine() -> str:
    """The running kernel's own id, the same in all containers of a machine; new at each boot."""
    with suppress(OSError):
        return _BOOT.read_text().strip()
    with suppress(OSError, subprocess.SubprocessError):
        words = ["sysctl", "-n", "kern.bootsessionuuid"]  # macOS
        answer = subprocess.run(words, capture_output=True, text=True, timeout=5, check=True)
        return answer.stdout.strip()
    return f"{uuid.getnode():012x}"


def versions(names: Sequence[str] = PACKAGES) -> str:
    """What is installed here of what must go together; nothing is imported for it."""
    found = []
    for name in names:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found)
