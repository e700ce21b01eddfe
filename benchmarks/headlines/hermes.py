"""Hermes' main result: the speed-up until the first good configuration reaches the target.

The paper reports a speed-up of up to 4.04 over FIFO, round robin and SLAQ, largest if few
configurations are good. All policies get the same forty configurations in the same order, and
every switch costs the same. SLAQ runs with normalised and with plain losses; Hermes is compared
with the better one in each setting.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.headlines.hermes_study import FAMILIES, TARGET, Case, Found, run
from benchmarks.headlines.pictures import picture
from benchmarks.headlines.rows import Options, Row

GOOD, SWITCHES = (1, 4, 10), (0.02, 0.1, 0.5)
PAPER = 4.04
_SYSTEM = "Hermes"
_SLAQ: dict[str, dict[str, Any]] = {
    "SLAQ": {"normalised": True},
    "SLAQ, plain": {"normalised": False},
}
_POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Hermes": ("hermes", {}),
    "FIFO": ("fifo", {}),
    "RR": ("round_robin", {}),
    **{name: ("slaq", parameters) for name, parameters in _SLAQ.items()},
}
_BESIDE: dict[str, tuple[str, dict[str, Any]]] = {
    "LAS": ("least_attained_service", {}),
    "HyperSched": ("hypersched", {}),
    "ASHA": ("asha_promote", {}),
}


@dataclass(frozen=True)
class Ratio:
    """The ratio of two mean times over the same seeds, with its jackknife standard error."""

    value: float
    error: float | None

    @classmethod
    def of(cls, theirs: Sequence[float], ours: Sequence[float]) -> Ratio:
        """The other policy's mean time divided by ours."""
        count, value = len(ours), sum(theirs) / sum(ours)
        if count < 2:
            return cls(value, None)
        without = [
            (sum(theirs) - one) / (sum(ours) - other)
            for one, other in zip(theirs, ours, strict=True)
        ]
        middle = statistics.fmean(without)
        spread = sum((ratio - middle) ** 2 for ratio in without)
        return cls(value, ((count - 1) / count * spread) ** 0.5)

    def __str__(self) -> str:
        return f"{self.value:.2f}" + ("" if self.error is None else f"±{self.error:.2f}")


def rows(options: Options) -> Iterator[Row]:
    """The speed-up for every number of good configurations and cost of a switch, and extras."""
    seeds = range(4 if options.quick else 20)
    lines: dict[float, list[tuple[int, Ratio]]] = {switch: [] for switch in SWITCHES}
    turns, overheads = [], []
    for good in GOOD:
        for switch in SWITCHES:
            found = _measure(options, _POLICIES, "quick", good, switch, seeds)
            turns.append(statistics.fmean(one.turns for one in found["Hermes"]))
            overheads.append(statistics.fmean(one.overhead for one in found["Hermes"]))
            ratios = _ratios(found)
            least = min(ratios.values(), key=lambda ratio: ratio.value)
            lines[switch].append((good, least))
            yield _headline(good, switch, ratios, least, len(seeds))
    yield Row(
        "time lost to preempting and resuming until the target", _SYSTEM, "minimal", max(turns),
        "at most 5 %", max(turns) <= 0.05,
        f"the worst of the settings above; {max(overheads):.1%} with each trial's first start",
    )  # fmt: skip
    for family in FAMILIES[1:]:
        found = _measure(options, _POLICIES, family, 4, 0.1, seeds)
        ratios = _ratios(found)
        least = min(ratios.values(), key=lambda ratio: ratio.value)
        yield Row(
            f"4 of 40 good, {_FAMILY_WORDS[family]}: times as soon as the best other",
            _SYSTEM, None, least.value, "", None, _note(ratios, len(seeds)),
        )  # fmt: skip
    found = _measure(options, {"Hermes": _POLICIES["Hermes"], **_BESIDE}, "quick", 4, 0.1, seeds)
    beside = {name: Ratio.of(_times(found[name]), _times(found["Hermes"])) for name in _BESIDE}
    least = min(beside.values(), key=lambda ratio: ratio.value)
    yield Row(
        "4 of 40 good: times as soon as methods that the paper leaves out", _SYSTEM, None,
        least.value, "", None, _note(beside, len(seeds)),
    )  # fmt: skip
    if options.pictures is not None:
        _draw(lines, options.pictures / "hermes.png")


_FAMILY_WORDS = {
    "alike": "as quick as the bad",
    "slow": "slower than the bad (curves cross)",
    "heights": "curves begin at different heights",
}


def _measure(
    options: Options,
    policies: dict[str, tuple[str, dict[str, Any]]],
    family: str,
    good: int,
    switch: float,
    seeds: Sequence[int],
) -> dict[str, list[Found]]:
    cases = [
        Case(name, family, good, switch, seed, parameters)
        for name, parameters in policies.values()
        for seed in seeds
    ]
    found = list(options.map(run, cases, f"Hermes, {good} good, switch {switch:g} epochs"))
    count = len(seeds)
    return {name: found[i * count : (i + 1) * count] for i, name in enumerate(policies)}


def _times(found: Sequence[Found]) -> list[float]:
    return [one.epochs for one in found]


def _ratios(found: dict[str, list[Found]]) -> dict[str, Ratio]:
    """The speed-ups over FIFO, round robin and the better SLAQ."""
    slaq = min(_SLAQ, key=lambda name: sum(_times(found[name])))
    ours = _times(found["Hermes"])
    return {name: Ratio.of(_times(found[name]), ours) for name in ("FIFO", "RR", slaq)}


def _headline(good: int, switch: float, ratios: dict[str, Ratio], least: Ratio, count: int) -> Row:
    few = good == GOOD[0]
    target = PAPER if few else 0.95
    return Row(
        f"{good} of 40 good, a switch costs {switch:g} epochs: times as soon at {TARGET:g}",
        _SYSTEM,
        PAPER if few else None,
        least.value,
        f">= {target:g} against each",
        least.value >= target,
        _note(ratios, count),
    )


def _note(ratios: dict[str, Ratio], count: int) -> str:
    return ", ".join(f"{name} {ratio}" for name, ratio in ratios.items()) + f"; {count} seeds"


def _draw(lines: dict[float, list[tuple[int, Ratio]]], path: Path) -> None:
    """Draw the speed-up over the best other policy against the number of good configurations."""
    with picture(path, size=(6.0, 4.0)) as (axes,):
        for switch, points in lines.items():
            axes.errorbar(
                [good for good, _ in points],
                [ratio.value for _, ratio in points],
                [ratio.error or 0.0 for _, ratio in points],
                marker="o",
                capsize=3,
                label=f"a switch costs {switch:g} epochs",
            )
        axes.axhline(1.0, color="grey", linewidth=0.8)
        axes.axhline(PAPER, color="grey", linewidth=0.8, linestyle="--", label="the paper's best")
        axes.set(xlabel="good configurations of 40", ylabel="times as soon as the best other")
        axes.set_xticks(GOOD)
        axes.set_ylim(bottom=0)
        axes.legend()
