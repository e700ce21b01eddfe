"""The forecast of ``optuna-deadline status``: the result at the deadline, also in other terms."""

from __future__ import annotations

import re
from dataclasses import asdict

import optuna

from optuna_deadline._numbers import format_count
from optuna_deadline._printable import printable
from optuna_deadline.cli.app import print_json
from optuna_deadline.cli.progress import show_when_slow
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.forecast import Forecast
from optuna_deadline.history.forecast import forecast as look_ahead
from optuna_deadline.history.reader import read_history
from optuna_deadline.history.text import format_value, until_deadline
from optuna_deadline.scenarios.api import change_of
from optuna_deadline.scenarios.comparison import AS_IT_IS, DRAWS, Prospect, Scenario, WhatIf
from optuna_deadline.scenarios.futures import Change
from optuna_deadline.values.budgets import Budget
from optuna_deadline.values.deadlines import format_duration
from optuna_deadline.values.scores import score

_FANS = 8


def show_forecast(
    study: optuna.Study, later: str | None, gpus: str | None, budget: str | None, as_json: bool
) -> None:
    """Predict the best value at the deadline and the value of each trial.

    Args:
        study: The study.
        later: What if the deadline were this much later.
        gpus: What if there were more slots, or fewer.
        budget: What if the budget were larger.
        as_json: Whether to print JSON.
    """
    history = read_history(study)
    change = change_of(history.budget, later, _slots(gpus), budget)
    found = look_ahead(history)
    answer = None
    if change != AS_IT_IS:
        question = Scenario(history, change)
        answer = question.answer(list(show_when_slow(question.pairs(), "Simulating", DRAWS)))
    if as_json:
        print_json(
            {
                "time_left": history.time_left,
                "forecast": asdict(found),
                "what_if": None
                if answer is None
                else {"change": asdict(change), **asdict(answer)},
            }
        )
        return
    left = until_deadline(history.time_left, history.settled is not None)
    print(f"{printable(history.name)}: {_describe_forecast(found, history.budget)}; {left}.")
    if answer is not None:
        print(_side_by_side(change, answer))
        return
    fans = sorted(
        found.fans, key=lambda fan: (not fan.running, -score(fan.mid[-1], history.direction))
    )
    for fan in fans[:_FANS]:
        how = f"on {fan.slots} slots" if fan.running else "if it resumed on one slot"
        low, high = sorted((fan.low[-1], fan.high[-1]))
        band = f"{format_value(low)} to {format_value(high)}"
        print(f"  trial {fan.number} {how}: {format_value(fan.mid[-1])} ({band})")


def _slots(gpus: str | None) -> int:
    if gpus is None:
        return 0
    if not re.fullmatch(r"[+-]?\d+", gpus.strip()):
        raise DeadlineError(
            f"--gpus takes a change of the number of slots, as in +4 or -2, but got {gpus!r}."
        )
    return int(gpus)


def _describe_forecast(found: Forecast, budget: Budget | None) -> str:
    if found.best is None:
        return "no reports yet"
    cost = f" with {found.slot_hours:.3g} slot-hours" if found.slot_hours else ""
    if found.spent is not None and budget is not None:
        cost += f" and {found.spent:.4g} of {budget}"
    used = " used" if cost else ""
    if not found.fans or found.low is None or found.high is None:
        return f"best {format_value(found.best)}{cost}{used}, and no trial continues"
    low, high = sorted((found.low, found.high))
    expected = (
        f"{format_value(found.expected)} expected ({format_value(low)} to {format_value(high)})"
    )
    return f"best {format_value(found.best)} now, {expected}{cost}{used and f'{used} by then'}"


def _side_by_side(change: Change, answer: WhatIf) -> str:
    """Both forecasts in columns, and the effect of the change."""
    changed, gain = answer.changed, answer.gain
    assert changed is not None and gain is not None
    rows = [("", "as it is", _words(change, answer.currency))]
    for name, of in _ROWS:
        rows.append((name, of(answer.as_it_is), of(changed)))
    if answer.currency is not None:
        money = f"{answer.as_it_is.spent:.4g}", f"{changed.spent:.4g}"
        rows.append((f"spent [{answer.currency}]", *money))
    widths = [max(len(row[place]) for row in rows) for place in range(3)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    better = "better" if gain.expected >= 0 else "worse"
    error = "" if gain.error is None else f" ±{gain.error:.2g}"
    lines.append(
        f"The best value would be {abs(gain.expected):.2g}{error} {better}, and better in "
        f"{gain.better:.0%} of {format_count(answer.draws, 'simulated end')}."
    )
    return "\n".join(f"  {line}" for line in lines)


def _band(one: Prospect) -> str:
    low, high = sorted((one.low, one.high))
    return f"{format_value(one.expected)} ({format_value(low)} to {format_value(high)})"


_ROWS = (
    ("best value", _band),
    ("slot-hours", lambda one: f"{one.slot_hours:.3g}"),
    ("new trials", lambda one: f"{one.new_trials:.0f}"),
)


def _words(change: Change, currency: str | None) -> str:
    parts = []
    if change.seconds:
        parts.append(f"{format_duration(change.seconds)} later")
    if change.slots:
        parts.append(
            f"{format_count(abs(change.slots), 'slot')} {'more' if change.slots > 0 else 'fewer'}"
        )
    if change.money:
        parts.append(f"{abs(change.money):g} {currency} {'more' if change.money > 0 else 'less'}")
    return ", ".join(parts)
