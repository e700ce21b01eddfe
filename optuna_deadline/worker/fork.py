"""Starting a segment: its ranks are forked, and know each other and their slots."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path

from optuna_deadline._crashpoints import crashpoint
from optuna_deadline.checkpoints.restore import Folders
from optuna_deadline.rank.fork_server import Zygote
from optuna_deadline.rank.process import RankSpec, Seat
from optuna_deadline.rank.rendezvous import Door
from optuna_deadline.worker.segment import Gang, Rank


@dataclass(frozen=True)
class Terms:
    """What all ranks of a worker have in common."""

    folders: Folders
    direction: str
    grace: float


@dataclass(frozen=True)
class Crew:
    """The ranks of a segment that one worker forks."""

    first: int  #: rank
    world_size: int  #: ranks on all hosts together
    host: int  #: which of the gang's hosts this is
    meeting: tuple[str, int]  #: address and port of the ranks' own rendezvous
    address: str | None = None  #: of this host; None where the gang is on one host
    door: Door | None = None  #: to the worker that leads, where it is another one


def launch(
    zygote: Zygote,
    gang: Gang,
    crew: Crew,
    resume: Path | None,
    terms: Terms,
    trusted_until: float,
) -> None:
    """Fork a worker's ranks of a granted segment, which end by themselves at ``trusted_until``."""
    with gang.lock:
        for spec in _specs(gang, crew, resume, terms, trusted_until):
            _fork(zygote, gang, spec)
    if not zygote.alive:  # it died meanwhile, and whoever noticed knew only some of these ranks
        for rank in gang.ranks:
            rank.orphaned = True
    crashpoint("launch.forked")


def _specs(
    gang: Gang, crew: Crew, resume: Path | None, terms: Terms, trusted_until: float
) -> Iterable[RankSpec]:
    grant = gang.grant
    for local in range(len(grant.slots)):
        yield RankSpec(
            number=grant.number,
            rank=crew.first + local,
            world_size=crew.world_size,
            meeting=crew.meeting,
            seat=Seat(local, len(grant.slots), crew.host, crew.address),
            fence=grant.fence,
            folder=str(terms.folders.here(grant.number)),
            store=terms.folders.elsewhere(grant.number),
            resume=str(resume) if resume else None,
            devices=grant.devices,
            direction=terms.direction,
            trusted_until=trusted_until,
            grace=terms.grace,
            door=crew.door,
        )


def _fork(zygote: Zygote, gang: Gang, spec: RankSpec) -> None:
    number, fence, index = gang.number, gang.grant.fence, spec.rank
    try:
        link = zygote.fork((number, fence, index), spec)
    except OSError:  # the zygote has just died: the segment ends like any other death
        ours, theirs = Pipe()
        theirs.close()
        gang.enlist(Rank(index, ours, born=fence, orphaned=True))
    else:
        gang.enlist(Rank(index, link, born=fence))
