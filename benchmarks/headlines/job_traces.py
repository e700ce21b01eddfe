"""Traces of jobs from a file or at random: arrivals, numbers of GPUs, and training."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from optuna_deadline.errors import DeadlineError

#: Samples in the data sets of the traces' models, which determine the steps of an epoch.
SAMPLES = {
    "ResNet-18": 50_000,
    "ResNet-50": 100_000,
    "Transformer": 10_000,
    "LM": 59_675,
    "Recommendation": 117_907,
}
_OTHER_SAMPLES = 50_000


@dataclass(frozen=True)
class Stretch:
    """The epochs of a job in one regime."""

    batch_size: int
    epochs: int
    epoch_seconds: float  #: seconds of an epoch on the job's gang


@dataclass(frozen=True)
class Job:
    """One job of a trace. The regimes come in the order of ``stretches``."""

    number: int
    arrival: float
    gang: int
    stretches: tuple[Stretch, ...]
    model: str = ""
    mode: str = ""

    @cached_property
    def epochs(self) -> int:
        """The epochs of the job."""
        return sum(stretch.epochs for stretch in self.stretches)

    @cached_property
    def ends(self) -> tuple[tuple[float, int], ...]:
        """The seconds and epochs of training at the end of each stretch, from 0."""
        seconds = accumulate((s.epochs * s.epoch_seconds for s in self.stretches), initial=0.0)
        epochs = accumulate((s.epochs for s in self.stretches), initial=0)
        return tuple(zip(seconds, epochs, strict=True))

    @property
    def exclusive(self) -> float:
        """The seconds of the job without waiting."""
        return self.ends[-1][0]

    @property
    def steps_per_epoch(self) -> dict[int, float]:
        """The optimizer steps of an epoch by batch size."""
        samples = SAMPLES.get(self.model, _OTHER_SAMPLES)
        return {s.batch_size: math.ceil(samples / s.batch_size) for s in self.stretches}


@dataclass(frozen=True)
class Trace:
    """Jobs for a cluster.

    Attributes:
        gpus: The GPUs of the cluster, all of one kind.
        jobs: The jobs in the order of their arrivals.
        round_seconds: The seconds of a round.
        resume_seconds: Seconds of a round that a job loses if it was not in the round before.
    """

    gpus: int
    jobs: tuple[Job, ...]
    round_seconds: float = 120.0
    resume_seconds: float = 20.0


def read_trace(path: Path) -> Trace:
    """Read a trace from a JSON file.

    The keys are ``cluster_gpus``, ``round_s``, ``resume_overhead_s`` and ``jobs``; a job has
    ``job``, ``arrival_s``, ``gpus``, ``model``, ``mode`` and ``regimes``, a list of
    ``batch_size``, ``epochs`` and ``seconds_per_epoch`` in the order in which they occur.

    Raises:
        DeadlineError: The file is not such a trace; the message names the job and the key.
    """
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DeadlineError(f"{path} cannot be read as a trace in JSON: {error}.") from error
    gpus = _number(content, "cluster_gpus", str(path), least=1)
    listed = content.get("jobs")
    if not isinstance(listed, list) or not listed:
        raise DeadlineError(f"{path} must hold a list of jobs under 'jobs', but it has none.")
    jobs = [_read_job(entry, f"{path}, job {index}", gpus) for index, entry in enumerate(listed)]
    numbers = [job.number for job in jobs]
    if len(set(numbers)) < len(numbers):
        raise DeadlineError(f"{path} holds two jobs of one number; number them apart.")
    return Trace(
        gpus=int(gpus),
        jobs=tuple(sorted(jobs, key=lambda job: (job.arrival, job.number))),
        round_seconds=_number(content, "round_s", str(path), least=1.0),
        resume_seconds=_number(content, "resume_overhead_s", str(path), least=0.0),
    )


def _read_job(entry: Any, where: str, gpus: float) -> Job:
    gang = int(_number(entry, "gpus", where, least=1))
    if gang > gpus:
        raise DeadlineError(f"{where} wants {gang} GPUs of {gpus:g}: it could never run.")
    regimes = entry.get("regimes")
    if not isinstance(regimes, list) or not regimes:
        raise DeadlineError(f"{where} must have a list 'regimes' with at least one regime.")
    return Job(
        number=int(_number(entry, "job", where, least=0)),
        arrival=_number(entry, "arrival_s", where, least=0.0),
        gang=gang,
        model=str(entry.get("model", "")),
        mode=str(entry.get("mode", "")),
        stretches=tuple(
            Stretch(
                batch_size=int(_number(regime, "batch_size", where, least=1)),
                epochs=int(_number(regime, "epochs", where, least=1)),
                epoch_seconds=_number(regime, "seconds_per_epoch", where, least=1e-6),
            )
            for regime in regimes
        ),
    )


def _number(entry: Any, key: str, where: str, *, least: float) -> float:
    value = entry.get(key) if isinstance(entry, dict) else None
    if (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and least <= value < math.inf
    ):
        return float(value)
    raise DeadlineError(f"{where} must have a number {key!r} from {least:g}, not {value!r}.")


#: Random models: name, smallest and largest batch size, approximate seconds of an epoch.
_MODELS = (
    ("ResNet-18", 32, 256, (20.0, 60.0)),
    ("ResNet-50", 32, 128, (200.0, 500.0)),
    ("Transformer", 16, 128, (30.0, 90.0)),
    ("LM", 10, 80, (40.0, 90.0)),
    ("Recommendation", 512, 8192, (15.0, 60.0)),
)
_SHORT_ONES = 0.8
_GANGS, _GANG_ODDS = (1, 2, 4, 8), (0.68, 0.22, 0.08, 0.02)


def generate_trace(
    seed: int,
    *,
    jobs: int,
    gpus: int,
    arrive_within: float = 5000.0,
    shortest: float = 720.0,
    border: float = 5400.0,
    longest: float = 18_000.0,
    static: float = 0.05,
) -> Trace:
    """Draw a random trace of the kind on which Shockwave was measured.

    Jobs arrive as a Poisson process; most have one GPU and few have eight. Four in five are short
    and one in five is long, each kind log-uniform, with the border of the published traces. A
    share is static. Half of the others scale their batches once, after a critical regime
    (Accordion); the other half double them several times (gradient noise scale). The constants are
    round figures that describe the published traces; they are not fitted to a result.

    Args:
        seed: The seed of the trace.
        jobs: The number of jobs.
        gpus: The GPUs of the cluster.
        arrive_within: The mean seconds in which all jobs arrive.
        shortest: Seconds of the shortest job, alone.
        border: Seconds between short and long jobs.
        longest: Seconds of the longest job, alone.
        static: The share of jobs that never change their batch sizes.
    """
    rng = np.random.default_rng([seed, jobs, gpus])
    arrivals = np.cumsum(rng.exponential(arrive_within / jobs, jobs))
    arrivals -= arrivals[0]
    fitting = [(gang, odd) for gang, odd in zip(_GANGS, _GANG_ODDS, strict=True) if gang <= gpus]
    odds = np.array([odd for _, odd in fitting])
    drawn = []
    for number in range(jobs):
        name, smallest, largest, pace = _MODELS[rng.integers(len(_MODELS))]
        low, high = (shortest, border) if rng.random() < _SHORT_ONES else (border, longest)
        seconds = math.exp(rng.uniform(math.log(low), math.log(high)))
        epoch = float(rng.uniform(*pace))
        epochs = max(1, round(seconds / epoch))
        begin = smallest * 2 ** int(rng.integers(int(math.log2(largest / smallest)) + 1))
        mode = str(rng.choice(["static", "accordion", "gns"],
                              p=[static, (1 - static) / 2, (1 - static) / 2]))  # fmt: skip
        gain = float(rng.uniform(1.1, 1.5))  # speed-up of an epoch with a doubled batch
        stretches = _draw_stretches(rng, mode, epochs, begin, largest, gain)
        whole = sum(stretch.epochs * stretch.epoch_seconds for stretch in stretches)
        stretches = tuple(
            replace(stretch, epoch_seconds=stretch.epoch_seconds * seconds / whole)
            for stretch in stretches
        )
        gang = fitting[int(rng.choice(len(fitting), p=odds / odds.sum()))][0]
        drawn.append(Job(number, round(float(arrivals[number]), 3), gang, stretches, name, mode))
    return Trace(gpus=gpus, jobs=tuple(drawn))


def _draw_stretches(
    rng: np.random.Generator,
    mode: str,
    epochs: int,
    begin: int,
    largest: int,
    gain: float,
) -> tuple[Stretch, ...]:
    doublings = int(math.log2(largest / begin)) if begin < largest else 0
    sizes = [begin]
    if mode == "accordion" and doublings:
        sizes.append(begin * 2**doublings)
    elif mode == "gns":
        sizes += [begin * 2 ** (1 + i) for i in range(doublings)]
    cuts = sorted({0, epochs, *(int(c) for c in rng.integers(1, epochs + 1, len(sizes) - 1))})
    return tuple(
        Stretch(size, last - first, gain ** -math.log2(size / begin))
        for size, first, last in zip(sizes, cuts, cuts[1:], strict=False)
    )
