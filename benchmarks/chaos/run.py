"""The run: faults, then a quiet period, then the deadline, then the checks."""

from __future__ import annotations

import math
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import optuna

from benchmarks.chaos import checker, evidence
from benchmarks.chaos.databases import Database, Postgres, Sqlite
from benchmarks.chaos.faults import Faults
from benchmarks.chaos.fleet import Fleet
from benchmarks.chaos.objective import EVERY
from benchmarks.chaos.usage import in_use_after, read_uses
from benchmarks.chaos.worker import GRACE, TTL, Place, step_sqlite
from optuna_deadline.allocation.database.opening import connect
from optuna_deadline.elastic import agree
from optuna_deadline.study.terms import Given

#: The studies and the CPU slots of each of their workers, which share a pool: one study starts
#: many trials, the other soon trains gangs.
FLEET = {"explore": (1, 1, 2, 2), "deal": (1, 1, 2, 2)}
PARAMETERS = {
    "explore": {"min_resource": 8, "max_resource": 60},
    "deal": {"min_resource": 8, "max_resource": 400},
}
#: A dead worker's lease and grace, then the polls of planner and worker, and a fork.
RECOVERY = TTL + GRACE + 2.0
QUIET = RECOVERY + 6.0
_AFTER_QUIET = 6.0  # seconds from the quiet period to the deadline
_SLACK = 90.0  # seconds by which the first deadline is later, beyond the reach of clock steps


FEWEST = 20  # acquired slots, and faults, below which a run is inconclusive


@dataclass(frozen=True)
class Verdict:
    """The result of the run."""

    seconds: float
    faults: int
    tenures: int  #: the number of acquired slots
    overlaps: int
    illegal_events: int
    lost_trials: int
    lost_steps_max: int
    recovered_s_max: float
    database: str
    hosts: int
    seed: int

    @property
    def inconclusive(self) -> bool:
        """Whether too little happened, for example because no worker trained."""
        return self.tenures < FEWEST or self.faults < FEWEST

    @property
    def good(self) -> bool:
        """Whether nothing was used twice or lost; the time of recovery is not judged."""
        wrong = self.overlaps + self.illegal_events + self.lost_trials
        return wrong == 0 and self.lost_steps_max <= EVERY and not self.inconclusive


def run(
    seconds: float, database: str, seed: int, folder: Path, hosts: int | None = None
) -> Verdict:
    """Run everything; violations are printed on standard error as they are found.

    Args:
        seconds: The duration of the faults.
        database: ``"postgresql"`` or ``"sqlite"``.
        seed: The seed of the faults.
        folder: The folder for logs, checkpoints and the ranks' files; it is kept.
        hosts: The number of hosts of the workers; by default 2, and 1 on SQLite.
    """
    hosts = hosts or (2 if database == "postgresql" else 1)
    (folder / "usage").mkdir(parents=True)
    members = sum(map(len, FLEET.values()))
    opened: Database = Postgres(folder, members) if database == "postgresql" else Sqlite(folder)
    if database == "sqlite":
        step_sqlite(folder / "clock")
    fleet = None
    try:
        _create_studies(opened.url, seconds + QUIET + _SLACK)
        names = [name for name, sizes in FLEET.items() for _ in sizes]
        cpus = [size for sizes in FLEET.values() for size in sizes]
        places = [
            Place(name, opened.url_for(index), size, folder, f"host-{index % hosts}")
            for index, (name, size) in enumerate(zip(names, cpus, strict=True))
        ]
        fleet = Fleet(places, folder)
        faults = _strike(fleet, opened, random.Random(seed), seconds)
        recovered = _recover(fleet, opened, folder)
        _finish(fleet, opened)
    finally:
        if fleet is not None:
            fleet.close()
        verdict = None
        if sys.exc_info()[0] is None:
            verdict = _judge(opened, folder, seconds, faults, recovered, database, hosts, seed)
        opened.close()
    assert verdict is not None
    return verdict


def _create_studies(url: str, seconds: float) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for name, parameters in PARAMETERS.items():
        study = optuna.create_study(study_name=name, storage=url, direction="maximize")
        agree(study, f"{seconds}s", Given(None, parameters))


def _strike(fleet: Fleet, database: Database, rng: random.Random, seconds: float) -> Faults:
    faults = Faults(fleet, database, rng)
    time.sleep(3.0)  # until the workers have started
    began = printed = time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        faults.mend()
        fleet.keep()
        name = faults.strike()
        if now - printed > 5:
            printed = now
            starts = sum(member.starts for member in fleet.members)
            say(f"{now - began:.0f} s: {faults.count.total()} faults, the last: {name}; "
                f"{starts} workers so far, {len(fleet.ghosts)} replaced ones linger")  # fmt: skip
        time.sleep(rng.expovariate(3.0))
    faults.mend(everything=True)
    for name, number in faults.count.most_common():
        say(f"{number:4d}  {name}")
    return faults


def _recover(fleet: Fleet, database: Database, folder: Path) -> float:
    """The seconds in the quiet period until every slot is used again, from its worker's start."""
    began = time.monotonic()
    fleet.dismiss_ghosts()
    while time.monotonic() < began + QUIET:
        fleet.keep()
        time.sleep(0.2)
    engine = connect(database.url).engine
    started = {member.pid: max(began, member.started_at) for member in fleet.members}
    offers = [offer for offer in evidence.offers(engine) if offer[2] in started]
    since: dict[str, float] = {}
    for device, _, pid in offers:
        since[device] = min(started[pid], since.get(device, math.inf))
    used = in_use_after(folder / "usage", since)
    for device in sorted(since.keys() - used.keys()):
        say(f"{device} is offered and was not used again")
    waits = {device: used.get(device, began + QUIET) - since[device] for device in since}
    say("in use again after " + ", ".join(f"{d} {s:.1f} s" for d, s in sorted(waits.items())))
    offered = Counter(study for _, study, _ in offers)
    if offered != {study: sum(sizes) for study, sizes in FLEET.items()}:
        say(f"only so many slots are offered: {dict(offered)}")
        return QUIET
    return max(waits.values())


def _finish(fleet: Fleet, database: Database) -> None:
    """Wait for the deadline, at which every worker exits by itself."""
    engine = connect(database.url).engine
    evidence.bring_forward(engine, _AFTER_QUIET)
    codes = fleet.join(_AFTER_QUIET + 15.0)
    say(f"the workers returned {codes}")
    for name in evidence.unsettled(engine):
        say(f"the study {name} is not settled")


def _judge(
    database: Database,
    folder: Path,
    seconds: float,
    faults: Faults,
    recovered: float,
    kind: str,
    hosts: int,
    seed: int,
) -> Verdict:
    engine = connect(database.url).engine
    uses = read_uses(folder / "usage")
    entries = evidence.read_entries(engine)
    (folder / "events").write_text("".join(f"{entry}\n" for entry in entries))
    endings = evidence.read_endings(engine, database.url, list(FLEET))
    overlaps = checker.overlaps(uses)
    illegal = checker.illegal_events(entries) + checker.without_grant(uses, entries)
    lost = checker.lost_trials(endings, {(use.study, use.number) for use in uses})
    redone = checker.lost_steps(uses, evidence.read_reports(engine), faults.unsaved)
    for words, found in (("overlap", overlaps), ("illegal", illegal), ("lost", lost)):
        for line in found[:20]:
            say(f"{words}: {line}")
    for segment, steps in redone.items():
        if steps > EVERY:
            say(f"redone: {steps} steps by {segment}")
    return Verdict(
        seconds=seconds,
        faults=faults.count.total(),
        tenures=sum(entry.kind == "acquire" for entry in entries),
        overlaps=len(overlaps),
        illegal_events=len(illegal),
        lost_trials=len(lost),
        lost_steps_max=max(redone.values(), default=0),
        recovered_s_max=round(recovered, 2),
        database=kind,
        hosts=hosts,
        seed=seed,
    )


def say(words: str) -> None:
    """Print a line of progress."""
    print(words, file=sys.stderr, flush=True)
