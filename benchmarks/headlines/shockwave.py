"""Shockwave's main results: its market against fairness baselines, on replayed job traces."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.cluster.jobs import Market, Round, Scheduler
from benchmarks.cluster.shares import Shares
from benchmarks.cluster.window import Window, WindowScheduler
from benchmarks.headlines.highs import by_milp
from benchmarks.headlines.job_traces import Trace, generate_trace, read_trace
from benchmarks.headlines.pictures import picture
from benchmarks.headlines.rows import Options, Row
from benchmarks.headlines.trace_replay import replay
from benchmarks.rivals.schedulers import (
    AlloX,
    FinishTimeFair,
    GandivaFair,
    MaxMinFair,
    MaxThroughput,
    MinTotalDuration,
)
from benchmarks.rivals.time_left import ByTimeLeft, PresentRegime
from optuna_deadline.policies.shockwave.program import by_gain
from optuna_deadline.simulation.comparison import Estimate

SYSTEM = "shockwave"
_FOLDER = "shockwave"
_SMALL, _MIDDLE = "jobs_120_gpus_32.json", "jobs_220_gpus_64.json"
_EXPECTED = "expected_120_gpus_32.json"

#: By the names in the published results, with the labels in pictures.
_SCHEDULERS: dict[str, tuple[str, Callable[[], Scheduler[Any]]]] = {
    "shockwave": ("Shockwave", WindowScheduler),
    "max_min_fairness": ("Gavel max-min", lambda: Shares(MaxMinFair())),
    "finish_time_fairness": ("Themis", lambda: Shares(FinishTimeFair())),
    "gandiva_fair": ("Gandiva-Fair", lambda: Shares(GandivaFair())),
    "min_total_duration": ("OSSP", lambda: Shares(MinTotalDuration())),
    "max_sum_throughput_perf": ("MST", lambda: Shares(MaxThroughput())),
    "allox": ("AlloX", lambda: Shares(AlloX())),
}
_FAIR = "max_min_fairness"
#: Ablations of our scheduler, and two rules that go by the predicted time left: by name, what they
#: are, the figure that must be worse than Shockwave's, and by what factor at least.
_ABLATIONS: dict[str, tuple[Callable[[], Scheduler[Any]], str, float]] = {
    "no makespan term": (lambda: WindowScheduler(pressure=0.0), "makespan", 1.2),
    "window of one round": (lambda: WindowScheduler(window=1, period=1), "makespan", 1.0),
    "present regime only": (lambda: PresentRegime(WindowScheduler()), "worst_rho", 1.0),
    "shortest left first": (lambda: ByTimeLeft(longest=False), "makespan", 1.2),
    "longest left first": (lambda: ByTimeLeft(longest=True), "worst_rho", 2.0),
}
#: Larger clusters: GPUs, jobs, seeds, and seeds with --quick.
_LARGE = ((128, 460, 5, 2), (256, 900, 3, 1))
_PRESSURES, _EXPONENTS = (1.0, 10.0, 100.0), (5.0, 12.0, 15.0)
_RERUN = "beside a run of the authors' code with HiGHS in Gurobi's place"
_IDEAL = "regimes in order, no delay of a batch's change"


@dataclass(frozen=True)
class Case:
    """One replay of a file or of a random trace."""

    scheduler: str
    file: Path | None = None
    seed: int = 0
    jobs: int = 0
    gpus: int = 0
    parameters: tuple[tuple[str, float], ...] = ()

    def trace(self) -> Trace:
        """The trace."""
        if self.file is not None:
            return read_trace(self.file)
        return generate_trace(self.seed, jobs=self.jobs, gpus=self.gpus)


@dataclass(frozen=True)
class Figures:
    """The result of a replay."""

    makespan: float
    mean_jct: float
    worst_rho: float
    unfair: float
    utilisation: float
    rhos: tuple[float, ...]


def run(case: Case) -> Figures:
    """Replay one case."""
    found = _ABLATIONS.get(case.scheduler)
    make = found[0] if found is not None else _SCHEDULERS[case.scheduler][1]
    scheduler = WindowScheduler(**dict(case.parameters)) if case.parameters else make()  # type: ignore[arg-type]
    done = replay(case.trace(), scheduler)
    rhos = tuple(sorted(done.rho.values()))
    return Figures(
        done.makespan, done.mean_jct, done.worst_rho, done.unfair(), done.utilisation, rhos
    )


def rows(options: Options) -> Iterator[Row]:
    """Yield every result of Shockwave."""
    folder = options.folder(_FOLDER)
    yield from _published(options, folder)
    yield from _middle(options, folder)
    yield from _ablations(options, folder)
    yield from _others(options, folder)
    for gpus, jobs, full, quick in _LARGE:
        yield from _large(options, gpus, jobs, quick if options.quick else full)
    yield from _sensitivity(options, folder)
    yield from _planning()


def _published(options: Options, folder: Path | None) -> Iterator[Row]:
    """120 jobs on 32 GPUs, beside the authors' published results for that trace."""
    expected: dict[str, dict[str, float]] = {}
    found: dict[str, Figures] = {}
    if folder is not None and _has(folder, _SMALL, _EXPECTED):
        expected = json.loads((folder / _EXPECTED).read_text())["policies"]
        cases = [Case(name, folder / _SMALL) for name in _SCHEDULERS]
        results = options.map(run, cases, "replaying 120 jobs on 32 GPUs")
        found = dict(zip(_SCHEDULERS, results, strict=True))
        _draw(options.pictures, found, expected)
    for name, (word, _) in _SCHEDULERS.items():
        if name != "shockwave":
            yield _baseline(word, expected.get(name), found.get(name))
    theirs, ours = expected.get("shockwave", {}), found.get("shockwave")
    for what, key, attribute, bound in (
        ("makespan (s)", "makespan_s", "makespan", 24_197.0),
        ("worst rho", "worst_rho", "worst_rho", 1.78),
        ("unfair jobs, rho > 1.05", "unfair_gt_1_05", "unfair", 0.05),
        ("mean completion time (s)", "avg_jct_s", "mean_jct", 9_960.0),
    ):
        yield _at_most(f"120 jobs, 32 GPUs: {what}", theirs.get(key), ours, attribute, bound)


def _baseline(word: str, theirs: dict[str, float] | None, ours: Figures | None) -> Row:
    name, target = f"120 jobs, 32 GPUs: {word}'s makespan (s)", "within 2 % of the published"
    if theirs is None or ours is None:
        return _missing(name, target)
    met = abs(ours.makespan / theirs["makespan_s"] - 1) <= 0.02
    note = (
        f"completion {ours.mean_jct:,.0f} against {theirs['avg_jct_s']:,.0f} s, worst rho "
        f"{ours.worst_rho:.2f} against {theirs['worst_rho']:.2f}; {_IDEAL}"
    )
    return Row(name, SYSTEM, theirs["makespan_s"], ours.makespan, target, met, note)


def _middle(options: Options, folder: Path | None) -> Iterator[Row]:
    """220 jobs on 64 GPUs, beside a run of the authors' code with another solver."""
    ours = fair = None
    if folder is not None and _has(folder, _MIDDLE):
        cases = [Case(name, folder / _MIDDLE) for name in ("shockwave", _FAIR)]
        ours, fair = options.map(run, cases, "replaying 220 jobs on 64 GPUs")
    for what, paper, attribute, bound in (
        ("makespan (s)", 24_855.0, "makespan", 24_900.0),
        ("worst rho", 2.166, "worst_rho", 2.0),
        ("unfair jobs, rho > 1.05", 0.0409, "unfair", 0.041),
    ):
        row = _at_most(f"220 jobs, 64 GPUs: {what}", paper, ours, attribute, bound)
        yield row if ours is None else replace(row, note=f"{_RERUN}; {_IDEAL}")
    if ours is None or fair is None:
        yield _missing("220 jobs, 64 GPUs: speed-up over max-min", "at least 1.27")
        return
    speedup = fair.makespan / ours.makespan
    yield Row(
        "220 jobs, 64 GPUs: speed-up over max-min", SYSTEM, "1.3 (abstract)", speedup,
        "at least 1.27", speedup >= 1.27,
        f"max-min's worst rho {fair.worst_rho:.2f}, unfair {fair.unfair:.1%}",
    )  # fmt: skip


def _ablations(options: Options, folder: Path | None) -> Iterator[Row]:
    """What each part of the scheduler is for, on both recorded traces."""
    for words, name in (("120 jobs, 32 GPUs", _SMALL), ("220 jobs, 64 GPUs", _MIDDLE)):
        file = folder / name if folder is not None and _has(folder, name) else None
        cases = [Case(one, file) for one in ("shockwave", *_ABLATIONS)] if file else []
        found = list(options.map(run, cases, f"ablating on {words}")) if cases else []
        ours = found.pop(0) if found else None
        for one, (_, attribute, factor) in _ABLATIONS.items():
            what = attribute.replace("_", " ")
            target = f"above {factor:g} times ours"
            if ours is None:
                yield _missing(f"{words}, {one}: {what}", target)
                continue
            theirs = found.pop(0)
            value, bound = float(getattr(theirs, attribute)), float(getattr(ours, attribute))
            yield Row(
                f"{words}, {one}: {what}", SYSTEM, None, value, target, value > factor * bound,
                f"ours {bound:,.4g}; makespan {theirs.makespan:,.0f} s, worst rho "
                f"{theirs.worst_rho:.2f}, unfair {theirs.unfair:.1%}, completion "
                f"{theirs.mean_jct:,.0f} s",
            )  # fmt: skip


def _others(options: Options, folder: Path | None) -> Iterator[Row]:
    """The other traces of the folder, each against max-min fairness."""
    for file in sorted(folder.glob("jobs_*.json")) if folder is not None else ():
        if file.name not in (_SMALL, _MIDDLE):
            cases = [Case(name, file) for name in ("shockwave", _FAIR)]
            found = list(options.map(run, cases, f"replaying {file.stem}"))
            yield from _against_max_min(file.stem, found, "as recorded")


def _large(options: Options, gpus: int, jobs: int, seeds: int) -> Iterator[Row]:
    """Random traces on a larger cluster, paired by seed with max-min fairness."""
    cases = [
        Case(name, seed=seed, jobs=jobs, gpus=gpus)
        for seed in range(1, seeds + 1)
        for name in ("shockwave", _FAIR)
    ]
    found = list(options.map(run, cases, f"replaying {jobs} jobs on {gpus} GPUs"))
    drawn = f"over {seeds} drawn trace{'s' if seeds > 1 else ''}"
    yield from _against_max_min(f"{jobs} jobs, {gpus} GPUs", found, drawn)


def _against_max_min(where: str, found: Sequence[Figures], words: str) -> Iterator[Row]:
    """Two rows from alternating figures of Shockwave and max-min fairness."""
    pairs = list(zip(found[::2], found[1::2], strict=True))
    speedup = Estimate.of([fair.makespan / ours.makespan for ours, fair in pairs])
    yield Row(
        f"{where}: speed-up over max-min", SYSTEM, "1.3 (abstract)",
        speedup.mean, "at least 1.27", speedup.mean >= 1.27,
        f"{speedup} {words}; unfair {_mean(o.unfair for o, _ in pairs):.1%} against "
        f"{_mean(f.unfair for _, f in pairs):.1%}, completion "
        f"{_mean(o.mean_jct for o, _ in pairs):,.0f} against "
        f"{_mean(f.mean_jct for _, f in pairs):,.0f} s",
    )  # fmt: skip
    worst = max(ours.worst_rho for ours, _ in pairs)
    met = all(ours.worst_rho <= fair.worst_rho for ours, fair in pairs)
    beside = ", ".join(f"{ours.worst_rho:.2f} / {fair.worst_rho:.2f}" for ours, fair in pairs)
    yield Row(
        f"{where}: worst rho", SYSTEM, None, worst, "no worse than max-min's, trace by trace",
        met, f"ours / max-min's: {beside}",
    )  # fmt: skip


def _sensitivity(options: Options, folder: Path | None) -> Iterator[Row]:
    """The two parameters over ranges of a factor of 100 and 3; all rows use one default."""
    file = folder / _SMALL if folder is not None and _has(folder, _SMALL) else None
    grid = [(("pressure", p), ("exponent", e)) for p in _PRESSURES for e in _EXPONENTS]
    cases = [
        Case("shockwave", file, seed=1, jobs=120, gpus=32, parameters=parameters)
        for parameters in grid
    ]
    found = list(options.map(run, cases, "trying other parameters"))
    trace = "the published trace" if file is not None else "a drawn trace, for want of the data"
    for what, attribute, spread, target in (
        ("makespan", "makespan", 1.10, "worst setting within 10 % of the best"),
        ("worst rho", "worst_rho", 2.00, "worst setting within twice the best"),
    ):
        values = [float(getattr(figures, attribute)) for figures in found]
        ratio = max(values) / min(values)
        cells = ", ".join(
            f"({p[1]:g}, {e[1]:g}) {value:,.5g}"
            for (p, e), value in zip(grid, values, strict=True)
        )
        yield Row(
            f"sensitivity of the {what}: worst by best of {len(grid)} settings", SYSTEM, None,
            ratio, target, ratio <= spread, f"(pressure, exponent) on {trace}: {cells}",
        )  # fmt: skip


@dataclass
class _Timed:
    """Times each plan of Shockwave, and lets HiGHS try to improve some of them."""

    shockwave: WindowScheduler
    seconds: list[tuple[int, float]] = field(default_factory=list)
    markets: list[tuple[Market, Window]] = field(default_factory=list)

    def schedule(self, market: Market, memory: Window | None) -> Round[Window]:
        began = time.perf_counter()
        answer = self.shockwave.schedule(market, memory)
        if answer.memory is not memory:
            self.seconds.append((len(market.jobs), time.perf_counter() - began))
            if len(self.seconds) % 25 == 1:
                self.markets.append((market, answer.memory))
        return answer


def _planning() -> Iterator[Row]:
    """The time of plans if 900 jobs arrive at once on 256 GPUs."""
    timed = _Timed(WindowScheduler())
    replay(generate_trace(1, jobs=900, gpus=256, arrive_within=1.0), timed)
    crowded = [seconds for jobs, seconds in timed.seconds if jobs >= 800]
    note = f"{len(crowded)} plans with 800 to 900 jobs present, windows of 20 rounds"
    for what, value, bound in (
        ("median", statistics.median(crowded), 1.0),
        ("worst", max(crowded), 5.0),
    ):
        yield Row(
            f"900 jobs, 256 GPUs: {what} time of a plan (s)", SYSTEM, None, value,
            f"at most {bound:g}", value <= bound, note,
        )  # fmt: skip
    short, took = [], []
    for market, window in timed.markets:
        programme = timed.shockwave.programme(market, window.dues)
        began = time.perf_counter()
        best = by_milp(programme, seconds=5.0)
        took.append(time.perf_counter() - began)
        if best is not None and programme.value(best) > 0:
            short.append(1 - programme.value(by_gain(programme)) / programme.value(best))
    yield Row(
        "closed form of the programme: worst shortfall against HiGHS", SYSTEM, None,
        max(short, default=None), "at most 0.1 %", bool(short) and max(short) <= 1e-3,
        f"{len(short)} plans of {len(took)}, gap 1e-3, 5 s; HiGHS took "
        f"{statistics.median(took):.2f} s in the middle and {max(took):.2f} s at worst",
    )  # fmt: skip


def _at_most(
    name: str, paper: float | None, ours: Figures | None, attribute: str, bound: float
) -> Row:
    target = f"at most {bound:,g}"
    if ours is None:
        return _missing(name, target)
    value = float(getattr(ours, attribute))
    return Row(name, SYSTEM, paper, value, target, value <= bound, _IDEAL)


def _has(folder: Path, *names: str) -> bool:
    return all((folder / name).is_file() for name in names)


def _missing(name: str, target: str) -> Row:
    return Row(
        name,
        SYSTEM,
        None,
        None,
        target,
        False,
        f"--data lacks this trace in its folder {_FOLDER!r}",
    )


def _mean(values: Iterator[float]) -> float:
    return statistics.fmean(values)


def _draw(
    pictures: Path | None, found: dict[str, Figures], expected: dict[str, dict[str, float]]
) -> None:
    """Draw four figures beside the published ones, and the rho of all jobs."""
    if pictures is None:
        return
    words = [_SCHEDULERS[name][0] for name in found]
    places = range(len(found))
    panels: Sequence[tuple[str, str, str]] = (
        ("makespan (s)", "makespan", "makespan_s"),
        ("mean completion time (s)", "mean_jct", "avg_jct_s"),
        ("worst rho", "worst_rho", "worst_rho"),
        ("part of the jobs with rho > 1.05", "unfair", "unfair_gt_1_05"),
    )
    with picture(pictures / "shockwave.png", len(panels), (3.7, 4.0)) as axes:
        for axis, (title, attribute, key) in zip(axes, panels, strict=True):
            ours = [float(getattr(figures, attribute)) for figures in found.values()]
            axis.bar([p - 0.2 for p in places], ours, 0.4, label="here", color="#0072b2")
            theirs = [expected[name][key] for name in found]
            axis.bar([p + 0.2 for p in places], theirs, 0.4, label="published", color="#cccccc")
            axis.set_title(title)
            axis.set_xticks(list(places), words, rotation=60, ha="right")
        axes[0].legend()
    with picture(pictures / "shockwave_rho.png", size=(7.0, 4.2)) as (axis,):
        for name, figures in found.items():
            parts = [(rank + 1) / len(figures.rhos) for rank in range(len(figures.rhos))]
            wide = 2.4 if name == "shockwave" else 1.1
            axis.plot(figures.rhos, parts, label=_SCHEDULERS[name][0], linewidth=wide)
        axis.axvline(1.05, color="#999999", linestyle=":")
        axis.set(xlabel="rho (completion by its fair share)", xlim=(0, 5))
        axis.set_ylabel("part of the jobs")
        axis.legend()
