"""What the trials that can still be trained will come to by the deadline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optuna_deadline.allocation.records import Desired, ReportRow
from optuna_deadline.forecasting.outlook import outlook
from optuna_deadline.forecasting.overheads import learn_overhead
from optuna_deadline.forecasting.throughput import Pace, Speedup, learn_speedup, step_seconds
from optuna_deadline.history.records import History

_POINTS = 8
_WAITING = 8  #: trials that wait and are looked at: a fit takes some milliseconds


@dataclass(frozen=True)
class Fan:
    """What one trial will have reached, if it trains from now on on the slots that it has."""

    number: int
    running: bool
    slots: int
    at: tuple[float, ...]
    mid: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Forecast:
    """The best value now, and what is expected at the deadline."""

    best: float | None
    expected: float | None
    low: float | None
    high: float | None
    fans: tuple[Fan, ...] = ()


def forecast(history: History) -> Forecast:
    """The best value expected at the deadline, of the trials that train now.

    Where none trains, of those that wait: as if each had one slot from now on. Each fan is
    :func:`~optuna_deadline.forecasting.outlook.outlook` over the steps that the trial's own pace,
    S(k) and the overheads measured so far allow until the deadline. ``low`` and ``high`` bound the
    best of them in the values' own direction: ``low`` is what is expected at worst.
    """
    sign = 1.0 if history.maximize else -1.0
    curves = history.curves
    known = history.improvements
    best = known[-1].value if known else None
    if history.settled is not None or history.time_left <= 0:
        return Forecast(best, best, best, best)
    paces = [
        Pace(row.number, row.slots, row.position_to - row.position_from, row.trained)
        for row in history.segments
        if row.position_from is not None and row.position_to is not None and row.trained
    ]
    speedup = learn_speedup(paces)
    seconds = step_seconds(paces, speedup)
    startups = [row.startup for row in history.segments if row.startup is not None]
    overhead = learn_overhead(startups, []).startup
    looked_at = _worth_a_look(history, curves, sign)
    found = (
        _fan(history, line, curves[line.number], seconds, speedup, overhead, sign)
        for line in looked_at
    )
    fans = [fan for fan in found if fan is not None]
    judged = [fan for fan in fans if fan.running] or fans
    if best is None or not judged:
        return Forecast(best, best, best, best, tuple(fans))
    choose = max if history.maximize else min
    return Forecast(
        best,
        choose(best, *(fan.mid[-1] for fan in judged)),
        choose(best, *(fan.low[-1] for fan in judged)),
        choose(best, *(fan.high[-1] for fan in judged)),
        tuple(fans),
    )


def _worth_a_look(
    history: History, curves: Mapping[int, list[ReportRow]], sign: float
) -> list[Desired]:
    """Trials with a finite report: all that train, and the best of those that wait."""
    alive = [
        line
        for line in history.trials
        if line.alive and line.mode != "stop" and line.number in curves
    ]
    best = {n: max(sign * row.value for row in rows) for n, rows in curves.items()}
    waiting = [line for line in alive if line.owner is None]
    waiting = sorted(waiting, key=lambda line: (-best[line.number], line.number))[:_WAITING]
    return [*(line for line in alive if line.owner is not None), *waiting]


def _fan(
    history: History,
    line: Desired,
    curve: list[ReportRow],
    seconds: Mapping[int, float],
    speedup: Speedup,
    overhead: float,
    sign: float,
) -> Fan | None:
    running = line.owner is not None
    slots = max(1, line.slots) if running else 1
    if line.number not in seconds:
        return None
    a_step = seconds[line.number] / max(speedup(slots), 1e-9)
    start = history.now if running else history.now + overhead
    last = curve[-1].step
    until = history.deadline
    if line.horizon is not None:
        until = min(until, start + max(0, line.horizon - last) * a_step)
    if until <= start or a_step <= 0:
        return None
    at = [start + (until - start) * i / _POINTS for i in range(_POINTS + 1)]
    ahead = [last + (instant - start) / a_step for instant in at]
    look = outlook([row.step for row in curve], [sign * row.value for row in curve], ahead)
    if until < history.deadline:  # what it has then, it keeps
        at.append(history.deadline)
        look_mid, look_low, look_high = (
            (*values, values[-1]) for values in (look.mid, look.low, look.high)
        )
    else:
        look_mid, look_low, look_high = look.mid, look.low, look.high
    return Fan(
        line.number, running, slots if running else 0, tuple(at),
        tuple(sign * v for v in look_mid),
        tuple(sign * v for v in look_low),
        tuple(sign * v for v in look_high),
    )  # fmt: skip
