"""A worker's registration in its pool, its drain, and the description of its host."""

from __future__ import annotations

import logging
import os
import subprocess
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from optuna_deadline._crashpoints import crashpoint
from optuna_deadline.allocation.records import CheckpointOrigin, MachineInfo
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checkpoints.sharing import reaches, store_of
from optuna_deadline.checkpoints.storage import Location
from optuna_deadline.errors import DeadlineError, StudyGone
from optuna_deadline.rank.processes import own_boot
from optuna_deadline.worker.devices import Offer, gpu_uuids, host_name
from optuna_deadline.worker.lease_clock import LeaseClock

_logger = logging.getLogger("optuna_deadline")


class PoolMembership:
    """Keeps a worker registered in its pool.

    Args:
        table: The allocation table.
        worker_id: The worker.
        offer: The slots that it offers.
        machine_info: The description of this host.
        lease_clock: Starts at the registration.
        weight: The study's weight in the pool; None leaves it unchanged.
    """

    def __init__(
        self,
        table: AllocationTable,
        worker_id: str,
        offer: Offer,
        machine_info: MachineInfo,
        lease_clock: LeaseClock,
        weight: float | None,
    ) -> None:
        self._table = table
        self._worker_id = worker_id
        self._offer = offer
        self._machine_info = machine_info
        self._lease_clock = lease_clock
        self._weight = weight
        self.host = host_name()
        self._evicted = False  # another worker offers its GPUs now
        self.drained = False  #: at a user's request

    def register(self) -> None:
        """Join the pool; the leases start."""
        sent = time.monotonic()
        self._offer_slots()
        crashpoint("register.trust")
        self._lease_clock.record_renewal(sent)

    def _offer_slots(self) -> None:
        offer = self._offer
        self._table.register(
            self._worker_id,
            self.host,
            os.getpid(),
            offer.devices,
            offer.cpus,
            self._weight,
            self._machine_info,
        )

    @property
    def store(self) -> str | None:
        """The checkpoint store of this worker."""
        return self._machine_info.store

    def reaches(self, home: CheckpointOrigin) -> bool:
        """Whether this worker can read files of an origin."""
        return reaches(self, home)

    def warn_of_unshared_checkpoints(self) -> None:
        """Warn about hosts that do not share checkpoints with this one."""
        mine = [w for w in self._table.workers() if w.study_id == self._table.study_id]
        hosts = {w.host for w in mine if not (reaches(self, w) and reaches(w, self))}
        if hosts:
            _logger.warning(
                "%s does not share its checkpoints with %s: trials saved here stay "
                "here. Name one shared folder, under the same path on all hosts, or a URL with "
                "--checkpoints.",
                self.host,
                " and ".join(sorted(hosts)),
            )

    def check_offers(self, offers: int | None, withdrawn: int = 0) -> bool:
        """Check how many slots this worker still offers: others may have declared it dead.

        Args:
            offers: The slots that it offers, as the table has it.
            withdrawn: Those that it does not offer because they are out of use.

        Returns:
            Whether it has offered all of them again.

        Raises:
            StudyGone: Its row is gone, which happens with its study only. A study that was created
                again may have the same number, so the table cannot tell.
        """
        if offers is None:
            raise StudyGone(
                "The study was deleted while the worker ran, with this worker's row: start "
                "the worker again if there is a new study."
            )
        if offers + withdrawn >= self._offer.size:
            return False
        try:
            self._offer_slots()  # renewing no held lease
        except DeadlineError as error:
            if not self._evicted:
                _logger.warning("This worker's leases expired: %s", error)
            self._evicted = True
            return False
        self._evicted = False
        _logger.warning("This worker's leases expired; it offers its slots again.")
        return True

    def set_drained(self, drained: bool, leaving: bool) -> None:
        """Apply orders to drain, and log changes."""
        if drained and not self.drained:
            _logger.warning("This host is drained: trials save and resume elsewhere.")
        elif self.drained and not drained and not leaving:
            _logger.warning("This host is no longer drained.")
        self.drained = drained


#: Packages whose versions must match on all hosts of a study.
PACKAGES = ("optuna-deadline", "torch", "lightning")

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def describe_machine(
    offer: Offer, root: Location, address: str | None = None, host_type: str | None = None
) -> MachineInfo:
    """Describe this host with an offer; creates the checkpoint folder."""
    known = gpu_uuids() if offer.gpus else {}
    return MachineInfo(
        machine=machine_id(),
        store=store_of(root, machine_id()),
        versions=installed_versions(),
        uuids={f"gpu:{index}": known[index] for index in offer.gpus if known.get(index)},
        address=address,
        host_type=host_type,
        boot=own_boot(),
    )


def machine_id() -> str:
    """The kernel's boot id: equal in all containers of a machine, new at each boot."""
    with suppress(OSError):
        return _BOOT.read_text().strip()
    with suppress(OSError, subprocess.SubprocessError):
        words = ["sysctl", "-n", "kern.bootsessionuuid"]  # macOS
        answer = subprocess.run(words, capture_output=True, text=True, timeout=5, check=True)
        return answer.stdout.strip()
    return f"{uuid.getnode():012x}"


def installed_versions(names: Sequence[str] = PACKAGES) -> str:
    """Installed versions of these packages, read without importing them."""
    found = []
    for name in names:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found)
