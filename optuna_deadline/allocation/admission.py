"""The rules for joining a pool: the newcomer's machine, devices and versions. Pure.

They are the same for every store. A rule applies only to facts that both sides know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from optuna_deadline.allocation.records import Slot, Worker
from optuna_deadline.errors import DeadlineError, SlotTaken, spelled


def check_admission(
    newcomer: Worker, uuids: Mapping[str, str], live: Iterable[Worker], slots: Sequence[Slot]
) -> None:
    """Raise an error unless a worker may join.

    - A study is in one pool at a time, because each pool has its own planner of it.
    - A host name belongs to one machine.
    - A GPU has one name, and a name belongs to one GPU, by UUID.
    - The workers of one study run the same packages, up to the second part of the version: a
      trial that moves must be able to load its checkpoint and continue exactly.

    Args:
        newcomer: The newcomer.
        uuids: Of its GPUs, by device.
        live: Live workers of all pools.
        slots: At least those slots of all pools that have one of these UUIDs or names.

    Raises:
        DeadlineError: It may not join; the message says what to do.
    """
    others = [row for row in live if row.id != newcomer.id]
    for other in others:
        if other.study_id == newcomer.study_id and other.pool != newcomer.pool:
            name = spelled(f"pool={other.pool!r}", f"--pool {other.pool}")
            raise DeadlineError(
                f"A worker of this study is in the pool {other.pool!r} (process {other.pid} on "
                f"{other.host}), and this one would be in {newcomer.pool!r}: give it {name} too, "
                "or stop the study's workers there first."
            )
        if other.host == newcomer.host and _versions_differ(other.machine, newcomer.machine):
            raise DeadlineError(
                f"Two machines are called {newcomer.host!r}: worker process {other.pid} is on the "
                "other one. Give this one another name with OPTUNA_DEADLINE_HOST (or, if it was "
                "just restarted, start the worker again in a minute)."
            )
    alive = {row.id for row in others}
    in_use = [row for row in slots if row.holder is not None or alive & {*row.offered_by}]
    for device, uuid in uuids.items():
        for row in in_use:
            here = (row.host, row.device) == (newcomer.host, device)
            if here and _versions_differ(row.uuid, uuid):
                raise DeadlineError(
                    f"{device} of {newcomer.host!r} is a different GPU for the worker that "
                    "offers it; "
                    "give this one another host name with OPTUNA_DEADLINE_HOST."
                )
            if not here and row.uuid == uuid:
                raise SlotTaken(
                    f"{device} is {row.device} of {row.host!r}, which a worker offers under "
                    "that name; stop that worker, or start this one under the same host name "
                    "with OPTUNA_DEADLINE_HOST."
                )
    mine = parse_versions(newcomer.versions)
    for other in others:
        theirs = parse_versions(other.versions) if other.study_id == newcomer.study_id else {}
        for name in sorted(mine.keys() & theirs.keys()):
            if _series(mine[name]) != _series(theirs[name]):
                raise DeadlineError(
                    f"This study is trained with {name} {theirs[name]} (on {other.host}), and "
                    f"here is {name} {mine[name]}: install {name} {_series(theirs[name])} here, "
                    "or stop the other workers first."
                )


def choose_devices(
    offered: Mapping[str, Sequence[Worker]],
    mine: Set[str],
    devices: Sequence[str],
    cpus: int,
    newcomer: Worker,
) -> list[str]:
    """The devices that a worker may offer: the GPUs that it names and a number of CPU shares.

    Args:
        offered: The host's devices, and which live workers offer them.
        mine: Devices that this worker offered before; they are kept first.
        devices: GPUs that it names.
        cpus: The number of CPU shares.
        newcomer: The worker.

    Raises:
        DeadlineError: A rival offers one of the named devices.
    """

    def rival(name: str) -> Worker | None:
        others = (row for row in offered.get(name, ()) if row.id != newcomer.id)
        return next(
            (
                row
                for row in others
                if row.pool != newcomer.pool or row.study_id == newcomer.study_id
            ),
            None,
        )

    for name in devices:
        if (other := rival(name)) is not None:
            raise _device_taken(name, newcomer.host, newcomer.pool, other)
    shares = (f"cpu:{index}" for index in range(len(offered) + cpus))
    free = sorted((name for name in shares if rival(name) is None), key=lambda n: n not in mine)
    return [*devices, *free[:cpus]]


def parse_versions(versions: str | None) -> dict[str, str]:
    """A worker's versions by package."""
    parts = [part.partition(" ") for part in (versions or "").split(", ")]
    return {name: version for name, _, version in parts if version}


def _device_taken(name: str, host: str, pool: str, other: Worker) -> SlotTaken:
    """The error for a device that another live worker offers."""
    where = "this pool" if other.pool == pool else f"pool {other.pool!r}"
    return SlotTaken(
        f"{name} on {host} is held by {where} (worker process {other.pid}); stop that worker or "
        "name another device."
    )


def _versions_differ(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and one != other


def _series(version: str) -> str:
    """``2.13`` for 2.13.0+cpu: the part that must match."""
    return ".".join(version.partition("+")[0].split(".")[:2])
