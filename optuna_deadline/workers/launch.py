"""Starting a segment: which checkpoint to go on from, which ranks to fork."""

from __future__ import annotations

import logging
from multiprocessing import Pipe
from pathlib import Path

from optuna_deadline.allocation.store import AllocationStore
from optuna_deadline.checkpoints import Checkpoint, intact
from optuna_deadline.crashpoints import crashpoint
from optuna_deadline.workers.devices import free_port
from optuna_deadline.workers.gang import Gang, Rank
from optuna_deadline.workers.rank import RankSpec
from optuna_deadline.workers.zygote import Zygote

_logger = logging.getLogger("optuna_deadline")


def launch(
    zygote: Zygote,
    gang: Gang,
    resume: Checkpoint | None,
    folder: Path,
    direction: str,
    trusted_until: float,
    grace: float,
) -> None:
    """Fork the ranks of a granted segment, which end by themselves at ``trusted_until``."""
    with gang.lock:
        _fork(zygote, gang, resume, folder, direction, trusted_until, grace)
    if not zygote.alive:  # it died meanwhile, and whoever noticed knew only some of these ranks
        for rank in gang.ranks:
            rank.orphaned = True
    crashpoint("launch.forked")


def _fork(
    zygote: Zygote,
    gang: Gang,
    resume: Checkpoint | None,
    folder: Path,
    direction: str,
    trusted_until: float,
    grace: float,
) -> None:
    grant, port = gang.grant, free_port()
    for index in range(grant.size):
        spec = RankSpec(
            number=grant.number,
            rank=index,
            world_size=grant.size,
            port=port,
            fence=grant.fence,
            folder=str(folder / f"trial-{grant.number}"),
            resume=str(resume.path) if resume else None,
            devices=grant.devices,
            direction=direction,
            trusted_until=trusted_until,
            grace=grace,
        )
        try:
            link = zygote.fork((grant.number, grant.fence, index), spec)
        except OSError:  # the zygote has just died: the segment ends like any other death
            ours, theirs = Pipe()
            theirs.close()
            gang.enlist(Rank(index, ours, orphaned=True))
        else:
            gang.enlist(Rank(index, link))


def find_resume(table: AllocationStore, number: int) -> Checkpoint | None:
    """The newest checkpoint whose file is whole; a damaged one falls back to the one before."""
    for checkpoint in table.checkpoints(number):
        if intact(checkpoint):
            return checkpoint
        _logger.warning(
            "Checkpoint %s of trial %d is damaged or gone; going on from the one before.",
            checkpoint.path,
            number,
        )
    return None
