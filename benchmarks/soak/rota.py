"""Open one study after the other, and move workers to the next when theirs has ended."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import optuna
import sqlalchemy as sa
from optuna.exceptions import StorageInternalError

from benchmarks.chaos import evidence
from benchmarks.chaos.databases import Database
from benchmarks.chaos.fleet import Fleet
from benchmarks.chaos.worker import Place
from optuna_deadline.elastic import agree, extend
from optuna_deadline.errors import DeadlinePassed
from optuna_deadline.study.terms import Given

#: The CPU slots of the workers of each study; so many studies run at once.
CREWS = ((1, 2), (1, 2), (1, 2), (1, 2))
POLICIES = ("adaptive_halving", "hypersched", "hermes", "fifo", "asha")
LAST, TICKS = 7, 3  # the last step of a trial, and the ticks of a step
_SECONDS = (10.0, 30.0, 45.0, *(60.0,) * 7)  # to the deadline of a study
_SPARE = 1.15  # trials allowed for each one wanted, since short studies end early
_LOOK_SECONDS = 0.5
#: Seconds from the end of a study until its workers must have ended, those frozen apart.
END_SECONDS = 15.0
_AWAY = (sa.exc.SQLAlchemyError, StorageInternalError)


@dataclass
class Term:
    """One study, and what the rota saw of it, on the monotonic clock."""

    name: str
    crew: int
    deadline: float
    trials: int
    ended: float | None = None  #: when it was seen to have ended
    stuck: int = 0  #: the workers that went on for too long and were killed


@dataclass
class Rota:
    """The studies of a run.

    Args:
        database: Their database.
        folder: The folder of the run.
        hosts: The number of hosts.
        rng: The source of all choices.
        studies: The number of studies.
        trials: The number of trials of all of them.
    """

    database: Database
    folder: Path
    hosts: int
    rng: random.Random
    studies: int
    trials: int
    terms: list[Term] = field(default_factory=list)

    def __post_init__(self) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._url = sa.make_url(self.database.url)
        if self._url.get_backend_name() == "postgresql":  # a fault may keep a table locked
            self._url = self._url.update_query_dict({"options": "-c lock_timeout=1s"})
        self._engine = sa.create_engine(self._url, poolclass=sa.pool.NullPool)
        self._looked = -1.0
        self._mean = _SPARE * self.trials / self.studies
        self.now = [self._open(crew) for crew in range(len(CREWS))]

    @property
    def ended(self) -> bool:
        """Whether all studies have ended."""
        return len(self.terms) == self.studies and all(term.ended for term in self.terms)

    def places(self) -> list[Place]:
        """The first places of all workers."""
        return [place for term in self.now for _, place in self._places(term)]

    def keep(self, fleet: Fleet) -> None:
        """Move the workers of studies that have ended, and replace dead ones of the others."""
        now = time.monotonic()
        if now < self._looked + _LOOK_SECONDS:
            return
        self._looked = now
        with suppress(*_AWAY):
            done = evidence.settled(self._engine)
            for crew, term in enumerate(self.now):
                if term.name not in done:
                    continue
                term.ended = term.ended or now
                members = [fleet.members[index] for index, _ in self._places(term)]
                alive = [member for member in members if member.process.is_alive()]
                if not alive and len(self.terms) < self.studies:
                    self.now[crew] = new = self._open(crew)
                    for index, place in self._places(new):
                        fleet.move(fleet.members[index], place)
                elif now > term.ended + END_SECONDS:
                    for member in alive:
                        term.stuck += member.frozen_at is None
                        member.process.kill()
            fleet.keep(done)

    def _open(self, crew: int) -> Term:
        """Open a study; one that a fault interrupted is opened again."""
        name = f"study-{len(self.terms)}"
        trials = round(self._mean * self.rng.uniform(0.6, 1.4))
        seconds = self.rng.choice(_SECONDS)
        url = self._url.render_as_string(hide_password=False)
        study = optuna.create_study(
            study_name=name, storage=url, direction="maximize", load_if_exists=True
        )
        deadline = time.monotonic() + seconds
        parameters = {"min_resource": 2, "max_resource": LAST + 1, "n_trials": trials}
        given = Given(self.rng.choice(POLICIES), parameters)
        try:
            agree(study, f"{seconds}s", given)
        except DeadlinePassed:
            extend(study, f"{seconds}s")
        term = Term(name, crew, deadline, trials)
        self.terms.append(term)
        return term

    def _places(self, term: Term) -> Iterator[tuple[int, Place]]:
        first = sum(map(len, CREWS[: term.crew]))
        for index, size in enumerate(CREWS[term.crew], first):
            host = f"host-{index % self.hosts}"
            url = self.database.url_for(index)
            yield index, Place(term.name, url, size, self.folder, host, LAST, TICKS)
