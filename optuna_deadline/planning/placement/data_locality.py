"""Where trials can resume: a checkpoint that only some hosts reach binds its trial to them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from optuna_deadline.allocation.records import CheckpointOrigin, PlannedTrial, Worker
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.allocation.tail import Tail
from optuna_deadline.checkpoints.sharing import reaches

_logger = logging.getLogger("optuna_deadline")


@dataclass(frozen=True)
class HostBinding:
    """The live workers that reach a trial's checkpoint, and where it is."""

    workers: frozenset[str]
    host: str

    @property
    def reason(self) -> str:
        """Why the trial waits."""
        return f"waits for {self.host}, which alone has its checkpoint"


class CheckpointLocality:
    """Knows where each trial's newest checkpoint is.

    If all hosts share one checkpoint store, as they should, this is read only once.

    Args:
        table: The allocation table.
    """

    def __init__(self, table: AllocationTable) -> None:
        self._new = Tail(table.checkpoint_origins)
        self._read_before = False
        self._hosts_differ = False
        self._newest: dict[int, CheckpointOrigin] = {}
        self._warned_hosts: frozenset[str] = frozenset()

    def bindings(
        self, workers: Sequence[Worker], trials: Mapping[int, PlannedTrial], now: float
    ) -> Mapping[int, HostBinding]:
        """The trials that some of the study's live workers cannot resume.

        A running trial saves where it trains, so it is already bound to that place.

        Args:
            workers: Live workers.
            trials: By number.
            now: The database's time before all of this was read.
        """
        if all(worker.store is None for worker in workers):
            return {}
        self._warn_of_isolated_hosts(workers)
        if self._hosts_differ or not self._read_before:
            self._read(now)
        by_id = {worker.id: worker for worker in workers}
        stores = {worker.store for worker in workers}
        known: dict[tuple[str | None, str | None], HostBinding | None] = {}
        found = {}
        for number, row in trials.items():
            place = by_id.get(row.owner or "") or self._newest.get(number)
            if place is None or not row.alive:
                continue
            key = place.host, place.store
            if key not in known:
                known[key] = None if stores == {place.store} else _binding_to(place, workers)
            bound = known[key]
            if bound is not None:
                found[number] = bound
        self._hosts_differ |= bool(found)
        return found

    def _read(self, now: float) -> None:
        self._read_before = True
        for home in self._new.read(now):
            before = self._newest.get(home.number)
            if before is None or before.id < home.id:
                self._newest[home.number] = home

    def _warn_of_isolated_hosts(self, workers: Iterable[Worker]) -> None:
        hosts = isolated_hosts(workers)
        if hosts and hosts != self._warned_hosts:
            self._hosts_differ = True
            _logger.warning(
                "Not every host can read the others' checkpoints: those of %s stay there, and "
                "their trials, too. Name one shared folder, under the same path, or a URL "
                "with --checkpoints.",
                " and of ".join(sorted(hosts)),
            )
        self._warned_hosts = hosts


def isolated_hosts(workers: Iterable[Worker]) -> frozenset[str]:
    """The hosts whose checkpoints some other host does not reach."""
    places = {(worker.host, worker.store): worker for worker in workers}
    if len({store for _, store in places}) == 1:
        return frozenset()  # the usual case; it makes the comparison of a thousand hosts fast
    everyone = list(places.values())
    return frozenset(
        one.host for one in everyone if any(not reaches(other, one) for other in everyone)
    )


def _binding_to(place: Worker | CheckpointOrigin, workers: Sequence[Worker]) -> HostBinding | None:
    reach = frozenset(worker.id for worker in workers if reaches(worker, place))
    return None if len(reach) == len(workers) else HostBinding(reach, str(place.host))
