"""Shockwave (Zheng et al., NSDI 2023): a market in which jobs buy rounds, planned ahead.

Every job weighs the same; the plan over the next rounds maximises the sum of the logarithms of
their progress (Nash welfare over time), heavier for jobs that would end later than an equal part
of the GPUs would let them, less a price for work that keeps the cluster from ending together. The
modules of the programme and of the dues say what is read in the authors' code and what is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.cluster.dues import Due, revise, rho, weight
from benchmarks.cluster.jobs import (
    JobView,
    Market,
    Round,
    fit,
    mean_epoch_seconds,
    seconds_left,
)
from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies.shockwave.program import Programme, by_gain, check_weights, order


@dataclass(frozen=True)
class Window:
    """A plan for the next rounds, and what fairness remembers. Passed back in each round."""

    made: int  #: the round in which it was made
    rounds: tuple[tuple[int, ...], ...]  #: the jobs of each round
    members: frozenset[int]  #: the jobs that were there
    dues: Mapping[int, Due]


@dataclass(frozen=True)
class WindowScheduler:
    """The scheduler of the market.

    No job starves: a job whose expected rho is above ``overdue`` runs before all that are less
    overdue, whatever the plan says, so that only GPUs that a more overdue job holds, and fewer
    than its own gang, can be kept from it.

    Args:
        pressure: What a GPU's round beyond the common end costs, in units of the logarithm; the
            makespan's weight (``k`` of the code, lambda of the paper, of another term there).
        exponent: Of rho in the weights (``lambda`` of the code, ``k`` of the paper).
        window: Rounds planned ahead.
        period: Number of rounds for which a plan is used, unless a job comes or goes.
        overdue: The rho beyond which a job goes before the plan.

    Raises:
        DeadlineError: A parameter cannot be.
    """

    pressure: float = 10.0
    exponent: float = 12.0
    window: int = 20
    period: int = 8
    overdue: float = 2.0

    def __post_init__(self) -> None:
        if not 1 <= self.period <= self.window:
            raise DeadlineError(
                "period must be from 1 to window rounds, but got "
                f"period={self.period!r} and window={self.window!r}."
            )
        check_weights(self.pressure, self.exponent, self.overdue)

    def schedule(self, market: Market, memory: Window | None) -> Round[Window]:
        """The jobs of one round: by the window in hand, or a new one."""
        members = frozenset(market.by_number)
        dues = memory.dues if memory is not None else {}
        if memory is None or members != memory.members:
            dues = revise(market, dues)
        elif market.round - memory.made < self.period:
            return Round(self._run(market, memory), memory)
        window = Window(market.round, self.plan(market, dues), members, dues)
        return Round(self._run(market, window), window)

    def plan(self, market: Market, dues: Mapping[int, Due]) -> tuple[tuple[int, ...], ...]:
        """A window of rounds."""
        programme = self.programme(market, dues)
        counts = by_gain(programme)
        ran = np.array([job.ran for job in market.jobs], dtype=bool)
        numbers = [job.number for job in market.jobs]
        return tuple(
            tuple(numbers[index] for index in chosen) for chosen in order(programme, counts, ran)
        )

    def programme(self, market: Market, dues: Mapping[int, Due]) -> Programme:
        """What the window is planned by."""
        jobs, seconds = market.jobs, market.round_seconds
        return Programme(
            gangs=np.array([float(job.gang) for job in jobs]),
            weights=np.array(
                [weight(market, job, dues[job.number], self.exponent) for job in jobs]
            ),
            progress=np.array([min(1.0, job.done / job.epochs) for job in jobs]),
            step=np.array([seconds / (mean_epoch_seconds(job) * job.epochs) for job in jobs]),
            left=np.array([seconds_left(job) / seconds for job in jobs]),
            gpus=market.gpus,
            rounds=self.window,
            pressure=self.pressure,
        )

    def _run(self, market: Market, window: Window) -> tuple[int, ...]:
        """This round of the window, the overdue before all, idle GPUs filled up."""
        planned = set(window.rounds[market.round - window.made])
        late = {job.number: rho(market, job, window.dues[job.number]) for job in market.jobs}

        def rank(job: JobView) -> tuple[float, bool, float, int]:
            overdue = late[job.number] if late[job.number] > self.overdue else 0.0
            return -overdue, job.number not in planned, -seconds_left(job), job.number

        return tuple(job.number for job in fit(market.gpus, sorted(market.jobs, key=rank)))
