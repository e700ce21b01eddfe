"""Replay a trace of jobs in rounds, under any scheduler of a market.

The rounds are those of Shockwave's simulator (NSDI 2023). They follow each other; each ends when
its last running job ends, after at most 120 s. Jobs are admitted between rounds. A job that was
not in the round before loses 20 s, unless less than a round of it is left. The GPUs of a job that
ends are idle until the end of the round. One idealisation is ours: a batch size changes at its
epoch, not one round later, and steps are not rounded.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property

from benchmarks.cluster.jobs import JobView, Market, Memory, Regime, Scheduler
from benchmarks.headlines.job_traces import Job, Trace
from optuna_deadline.errors import DeadlineError

#: A job that ends this many seconds before the end of a round pays nothing for resuming.
_NEARLY = 5.0
_TINY = 1e-6


@dataclass(frozen=True)
class RoundLog:
    """One round of a replay."""

    began: float
    ended: float
    run: tuple[int, ...]
    gpus: int  #: GPUs of the running jobs


@dataclass(frozen=True)
class Replay:
    """The result of a replay; times are in seconds."""

    trace: Trace
    finished: dict[int, float]  #: when each job ended
    rounds: tuple[RoundLog, ...]
    trained: float  #: GPU-seconds of training

    @property
    def makespan(self) -> float:
        """Seconds from the first arrival to the last end."""
        return max(self.finished.values()) - min(job.arrival for job in self.trace.jobs)

    @cached_property
    def jct(self) -> dict[int, float]:
        """The completion time of each job, from its arrival to its end."""
        return {job.number: self.finished[job.number] - job.arrival for job in self.trace.jobs}

    @property
    def mean_jct(self) -> float:
        """The mean completion time."""
        return statistics.fmean(self.jct.values())

    @cached_property
    def rho(self) -> dict[int, float]:
        """The finish-time fairness of each job, by the static definition of Shockwave's code.

        ``completion time / (time alone * max(1, jobs / GPUs))``, over all jobs of the trace.
        """
        contention = max(1.0, len(self.trace.jobs) / self.trace.gpus)
        return {
            job.number: self.jct[job.number] / (job.exclusive * contention)
            for job in self.trace.jobs
        }

    @property
    def worst_rho(self) -> float:
        """The largest rho of a job."""
        return max(self.rho.values())

    def unfair(self, above: float = 1.05) -> float:
        """The share of jobs with a rho above a bound."""
        return statistics.fmean(rho > above for rho in self.rho.values())

    @property
    def utilisation(self) -> float:
        """The GPU-seconds of training divided by the available GPU-seconds."""
        return self.trained / (self.trace.gpus * self.makespan)


def replay(trace: Trace, scheduler: Scheduler[Memory]) -> Replay:
    """Replay a whole trace.

    Raises:
        DeadlineError: The scheduler names an absent job, a job twice or too many GPUs, or leaves
            the cluster idle.
    """
    waiting = sorted(trace.jobs, key=lambda job: (job.arrival, job.number), reverse=True)
    active: dict[int, _Training] = {}
    finished: dict[int, float] = {}
    log: list[RoundLog] = []
    memory: Memory | None = None
    now, trained = waiting[-1].arrival, 0.0
    while waiting or active:
        if not active:
            now = max(now, waiting[-1].arrival)
        while waiting and waiting[-1].arrival <= now:
            job = waiting.pop()
            active[job.number] = _Training(job)
        views = tuple(training.view() for training in active.values())
        market = Market(now, len(log), trace.round_seconds, trace.gpus, views)
        answer = scheduler.schedule(market, memory)
        memory = answer.memory
        gpus = _checked(answer.run, market)
        ended = now
        for number in answer.run:
            training = active[number]
            lost = 0.0 if training.ran or not log else trace.resume_seconds
            seconds, useful = training.train(trace.round_seconds, lost)
            trained += useful * training.job.gang
            ended = max(ended, now + seconds)
            if training.over:
                finished[number] = now + seconds
        for number, training in list(active.items()):
            training.ran = number in answer.run
            if training.over:
                del active[number]
        log.append(RoundLog(now, ended, answer.run, gpus))
        now = ended
    return Replay(trace, finished, tuple(log), trained)


def _checked(run: tuple[int, ...], market: Market) -> int:
    """Check a round; return its GPUs."""
    if not run:
        raise DeadlineError("The scheduler lets every GPU idle although jobs wait.")
    if len(set(run)) < len(run) or not set(run) <= market.by_number.keys():
        raise DeadlineError(f"The scheduler named jobs twice, or ones that are not there: {run}.")
    gpus = sum(market.by_number[number].gang for number in run)
    if gpus > market.gpus:
        raise DeadlineError(f"The scheduler gave away {gpus} GPUs of {market.gpus}.")
    return gpus


@dataclass
class _Training:
    """The progress of one job."""

    job: Job
    seconds: float = 0.0  #: of training so far
    ran: bool = False
    _known: tuple[Regime, ...] = field(init=False)
    _index: list[int] = field(init=False)  #: the regime of each stretch

    def __post_init__(self) -> None:
        steps = self.job.steps_per_epoch
        found: dict[tuple[int, float], int] = {}
        self._index = [
            found.setdefault((s.batch_size, s.epoch_seconds), len(found))
            for s in self.job.stretches
        ]
        self._known = tuple(Regime(size, seconds, steps[size]) for size, seconds in found)

    @property
    def over(self) -> bool:
        """Whether the job has trained to its end."""
        return self.job.exclusive - self.seconds <= _TINY

    def train(self, most: float, lost: float) -> tuple[float, float]:
        """Train in a round; return the seconds of held GPUs and of training."""
        held = min(most, self.job.exclusive - self.seconds)
        useful = held - (lost if held > most - _NEARLY else 0.0)
        self.seconds += useful
        return held, useful

    def view(self) -> JobView:
        """The job as a scheduler sees it."""
        job, ends = self.job, self.job.ends
        stretch = min(bisect_right(ends, (self.seconds, job.epochs)), len(job.stretches)) - 1
        stretch = max(0, stretch)
        since = self.seconds - ends[stretch][0]
        done = ends[stretch][1] + since / job.stretches[stretch].epoch_seconds
        seen = [0] * len(self._known)
        for index in range(stretch):
            seen[self._index[index]] += job.stretches[index].epochs
        in_this = min(int(done) - ends[stretch][1] + 1, job.stretches[stretch].epochs)
        seen[self._index[stretch]] += in_this
        return JobView(
            number=job.number,
            arrival=job.arrival,
            gang=job.gang,
            epochs=job.epochs,
            done=min(done, job.epochs),
            regimes=self._known,
            seen=tuple(seen),
            current=self._index[stretch],
            received=self.seconds,
            ran=self.ran,
        )
