"""Starting a segment: its ranks are forked, and know each other and their slots."""

from __future__ import annotations

from multiprocessing import Pipe
from pathlib import Path

from optuna_deadline.crashpoints import crashpoint
from optuna_deadline.workers.devices import free_port
from optuna_deadline.workers.gang import Gang, Rank
from optuna_deadline.workers.rank import RankSpec
from optuna_deadline.workers.resuming import Folders
from optuna_deadline.workers.zygote import Zygote


def launch(
    zygote: Zygote,
    gang: Gang,
    resume: Path | None,
    folders: Folders,
    direction: str,
    trusted_until: float,
    grace: float,
) -> None:
    """Fork the ranks of a granted segment, which end by themselves at ``trusted_until``."""
    with gang.lock:
        _fork(zygote, gang, resume, folders, direction, trusted_until, grace)
    if not zygote.alive:  # it died meanwhile, and whoever noticed knew only some of these ranks
        for rank in gang.ranks:
            rank.orphaned = True
    crashpoint("launch.forked")


def _fork(
    zygote: Zygote,
    gang: Gang,
    resume: Path | None,
    folders: Folders,
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
            folder=str(folders.here(grant.number)),
            store=folders.elsewhere(grant.number),
            resume=str(resume) if resume else None,
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
            gang.enlist(Rank(index, ours, born=grant.fence, orphaned=True))
        else:
            gang.enlist(Rank(index, link, born=grant.fence))
