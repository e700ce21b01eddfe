"""RubberBand (EuroSys 2021): the cost of a given job on a static and on an elastic cluster.

The job is a successive halving of 64 configurations, SHA(64, 4, 508, 2), with 10 s per iteration
and the speeds of ResNet-50 on CIFAR-10 that HyperSched's authors measured on V100 GPUs. Nodes of
four GPUs are billed as a whole, with a start-up of a minute. The deadline is a multiple of the
shortest possible time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.headlines.pictures import picture
from benchmarks.headlines.rows import Options, Row
from benchmarks.headlines.rubberband_policy import (
    Job,
    fastest_seconds,
    plan_elastic,
    plan_static,
    rates_for,
)
from optuna_deadline.policies.api import Money
from optuna_deadline.simulation import SUBLINEAR

#: V100 GPUs of a p3.8xlarge, at its list price; ratios do not depend on it.
_PRICE = 12.24 / 4 / 3600

#: Multiples of the shortest time, with the target of the saving.
_DEADLINES = ((1.2, 2.06), (1.5, 1.36), (2.0, 1.03), (4.0, 1.0))

_JOBS = {
    "SHA(64,4,508,2)": Job(64, 4, 508, 2, 10.0),
    "SHA(64,1,81,3)": Job(64, 1, 81, 3, 10.0),
    "SHA(32,1,50,3)": Job(32, 1, 50, 3, 10.0),
}


@dataclass(frozen=True)
class Point:
    """Both costs of one job at one deadline."""

    job: str
    times: float
    static: float
    elastic: float

    @property
    def saving(self) -> float:
        """The static cost divided by the elastic one."""
        return self.static / self.elastic


def measure(case: tuple[str, float]) -> Point:
    """Plan one job for one deadline."""
    name, times = case
    job = _JOBS[name]
    money = Money(1e12, 0.0, _PRICE, granularity=1.0, startup=60.0, node=4, offer=512)
    rates = rates_for(money, SUBLINEAR)
    time = times * fastest_seconds(job, rates)
    static, elastic = plan_static(job, rates, time), plan_elastic(job, rates, time)
    assert static is not None and elastic is not None
    return Point(name, times, static.cost, elastic.cost)


def rows(options: Options) -> Iterator[Row]:
    """A row for each deadline of the paper's larger job; the picture has the other jobs."""
    targets = dict(_DEADLINES)
    curve = [*targets] if options.quick else [1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0]
    jobs = list(_JOBS)[: 1 if options.quick else None]
    cases = [(job, times) for job in jobs for times in curve]
    points = []
    for point in options.map(measure, cases, "RubberBand's plans"):
        points.append(point)
        if point.job == "SHA(64,4,508,2)" and point.times in targets:
            least = targets[point.times]
            yield Row(
                name=f"cost static / elastic at {point.times:g}x the fastest time",
                system="RubberBand",
                paper="up to 2x" if point.times == 1.2 else None,
                ours=point.saving,
                target=f">= {least}",
                met=point.saving >= least,
                note=f"{point.static:.2f} and {point.elastic:.2f} usd; planned, no latency varies",
            )
    if options.pictures is not None:
        with picture(options.pictures / "rubberband.png", 1) as (axes,):
            for job in jobs:
                mine = [point for point in points if point.job == job]
                axes.plot([p.times for p in mine], [p.saving for p in mine], "o-", label=job)
            axes.axhline(1.0, color="grey", linewidth=0.8)
            axes.set_xlabel("deadline, in multiples of the fastest time")
            axes.set_ylabel("cost: static cluster / elastic")
            axes.legend(frameon=False)
