"""``optuna-deadline forecast``: what there will be at the deadline."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

import typer

from optuna_deadline._forecast import duration_of
from optuna_deadline.cli.app import Json, Storage, Study, command, say_json
from optuna_deadline.cli.studies import load_study
from optuna_deadline.history.forecast import Forecast
from optuna_deadline.history.forecast import forecast as look_ahead
from optuna_deadline.history.reading import read_history
from optuna_deadline.history.words import roughly, until_deadline, value

_FANS = 8


@command
def forecast(
    study: Study,
    storage: Storage,
    later: Annotated[
        str | None, typer.Option(help="And if the deadline were so much later, as in 1h.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what the best value is expected to be at the deadline, and what each trial comes to.

    Bands hold eight of ten outcomes, learned from the study's own curves.
    """
    history = read_history(load_study(study, storage))
    found = look_ahead(history)
    longer: Forecast | None = None
    more = 0.0
    if later is not None:
        more = duration_of(later)
        longer = look_ahead(replace(history, deadline=history.deadline + more))
    if as_json:
        say_json(
            {
                "time_left": history.time_left,
                "forecast": asdict(found),
                "later": None if longer is None else {"seconds": more, **asdict(longer)},
            }
        )
        return
    left = until_deadline(history.time_left, history.settled is not None)
    print(f"{history.name}: {_say(found)}; {left}.")
    if longer is not None:
        print(f"With {roughly(more)} more: {_say(longer)}.")
    sign = -1.0 if history.maximize else 1.0
    for fan in sorted(found.fans, key=lambda fan: (not fan.running, sign * fan.mid[-1]))[:_FANS]:
        how = f"on {fan.slots} slots" if fan.running else "if it resumed on one slot"
        low, high = sorted((fan.low[-1], fan.high[-1]))
        band = f"{value(low)} to {value(high)}"
        print(f"  trial {fan.number} {how}: {value(fan.mid[-1])} ({band})")


def _say(found: Forecast) -> str:
    if found.best is None:
        return "nothing was reported yet"
    if not found.fans or found.low is None or found.high is None:
        return f"best {value(found.best)}, and nobody trains on"
    low, high = sorted((found.low, found.high))
    expected = f"{value(found.expected)} expected ({value(low)} to {value(high)})"
    return f"best {value(found.best)} now, {expected}"
