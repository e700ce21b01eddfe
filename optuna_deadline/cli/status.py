"""``optuna-deadline status``: a study once, its events, its forecast, or its pool."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime, timezone
from typing import Annotated

import optuna
import typer

from optuna_deadline._garbage import collecting_later
from optuna_deadline._optuna import id_of, storage_of
from optuna_deadline.allocation.database.engine import autocommit
from optuna_deadline.allocation.records import PlannedTrial
from optuna_deadline.checking.rows import OUTCOME, summed_up
from optuna_deadline.cli.app import Json, Storage, command, console, print_json
from optuna_deadline.cli.databases import load_study, measure
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.outcome import StudyOutcome, read_outcome
from optuna_deadline.history.reader import read_history, table_of
from optuna_deadline.history.records import History
from optuna_deadline.history.slot_usage import slot_usage
from optuna_deadline.live.console import SafeConsole
from optuna_deadline.live.top import render, sparkline
from optuna_deadline.live.view import TrialRow, View
from optuna_deadline.live.watcher import StudyWatcher
from optuna_deadline.values.deadlines import format_duration
from optuna_deadline.values.scores import score

_CURVE = 40  # characters


def plain_view(history: History) -> View:
    """Read the present state of a study."""
    best = history.improvements[-1] if history.improvements else None
    return View(
        study=history.name,
        time_left=history.time_left,
        deadline=datetime.fromtimestamp(history.deadline, timezone.utc).astimezone(),
        duration=history.deadline - history.started,
        direction=history.direction,
        ended=history.settled is not None,
        gate_open=history.time_left > 0 and all(event.kind != "gate" for event in history.events),
        best_value=best.value if best else None,
        best_trial=best.number if best else None,
        best_step=best.step if best else None,
        rows=tuple(_row(history, planned) for planned in history.trials),
    )


def _row(history: History, planned: PlannedTrial) -> TrialRow:
    values = tuple(row.value for row in history.curves_by_trial.get(planned.number, ()))
    return TrialRow(
        number=planned.number,
        state=planned.shown_state,
        step=history.curves_by_trial[planned.number][-1].step if values else None,
        value=values[-1] if values else None,
        best=max(values, key=lambda value: score(value, history.direction), default=None),
        curve=values,
    )


@command
@collecting_later()
def status(
    storage: Storage,
    study: Annotated[str | None, typer.Argument(help="Name of the study.")] = None,
    events: Annotated[
        bool, typer.Option("--events", help="Show its events, oldest first.")
    ] = False,
    last: Annotated[int, typer.Option(min=1, help="Number of events, the newest ones.")] = 50,
    trial: Annotated[int | None, typer.Option(help="Only events of this trial.")] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only events of this kind, as in plan; repeatable.")
    ] = None,
    forecast: Annotated[
        bool, typer.Option("--forecast", help="Predict the values at the deadline.")
    ] = False,
    later: Annotated[
        str | None, typer.Option(help="What if the deadline were this much later, as in 1h.")
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(help="What if there were more slots, as in +4, or fewer, -2.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="What if the budget were larger, as in +20usd.")
    ] = None,
    pool: Annotated[
        bool, typer.Option("--pool", help="Show the studies, shares and slots of its pool.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a study once: time left, best value, running trials and why; or its pool.

    With a forecast, bands contain eight of ten outcomes and are learned from the study's own
    curves. The effect of more time, slots or money is simulated from its present state.
    """
    events = events or trial is not None or bool(kind)
    forecast = forecast or not (later is gpus is budget is None)
    views = {"--events": events, "--forecast": forecast, "--pool": pool}
    if len(asked := [name for name, given in views.items() if given]) > 1:
        raise DeadlineError(f"{' and '.join(asked)} are alternatives: give one of them.")
    if study is None and not pool:
        raise DeadlineError("Name a study, as in 'optuna-deadline status digits', or give --pool.")
    # Each view imports what it shows, so that the others start at once.
    if pool:
        from optuna_deadline.cli.pools import show_pools

        show_pools(storage, study, as_json)
        return
    assert study is not None
    found = load_study(study, storage)
    if events:
        from optuna_deadline.cli.events import show_events

        show_events(found, last, trial, kind, as_json)
    elif forecast:
        from optuna_deadline.cli.forecast import show_forecast

        show_forecast(found, later, gpus, budget, as_json)
    else:
        _show(found, as_json)


def _show(found: optuna.Study, as_json: bool) -> None:
    table, terms = table_of(found)
    view = StudyWatcher(table, terms).view()
    with autocommit(table.database.engine) as connection:
        warning = measure(connection, table.study_id).warning
    history = read_history(found)
    if not view.rows and history.plain:
        view = plain_view(history)
    check, spent = _check_of(found), slot_usage(history)
    outcome = read_outcome(found, history) if view.time_left <= 0 or history.settled else None
    if as_json:
        print_json(
            {
                **asdict(view),
                "deadline": view.deadline.isoformat(),
                "warning": warning,
                "check": check,
                "slot_usage": asdict(spent),
                "outcome": None if outcome is None else asdict(outcome),
            }
        )
        return
    screen = SafeConsole()
    screen.print(render(replace(view, limits=()), max(24, screen.height)))
    if spent.total > 0:
        screen.print(f"slots  {spent}", markup=False, highlight=False, soft_wrap=True)
    for words in [] if outcome is None else _found(outcome):
        screen.print(words, markup=False, highlight=False, soft_wrap=True)
    for words in view.limits:
        screen.print(words, markup=False, highlight=False, soft_wrap=True)
    if check is not None:
        words = f"check of the first trial: {summed_up(check)}"
        screen.print(words, markup=False, highlight=False, soft_wrap=True)
    if warning is not None:
        console.print(f"{terms.name}: {warning}.", markup=False, soft_wrap=True)


def _found(outcome: StudyOutcome) -> list[str]:
    """What a study has found, in lines."""
    best, values = outcome.best, [value for _, value in outcome.improvements]
    if best is None:
        return ["no trial has reported a value"]
    lines = [f"parameters  {best.params}"]
    if values:
        span = outcome.ended - outcome.started
        held = [_held(outcome, span * (place + 1) / _CURVE) for place in range(_CURVE)]
        curve = sparkline(held, min(values), max(values), _CURVE)
        lines.append(f"best value over {format_duration(span)}  {curve}")
    if outcome.command is None:
        lines.append("no checkpoint was saved")
    else:
        lines.append(f"load the model  {outcome.command}")
    return lines


def _held(outcome: StudyOutcome, seconds: float) -> float | None:
    """The best value at an instant."""
    before = [value for at, value in outcome.improvements if at <= seconds]
    return before[-1] if before else None


def _check_of(study: optuna.Study) -> dict[str, str] | None:
    """The result of the check of the study's first trial, if there was one."""
    storage = storage_of(study)
    with suppress(KeyError):
        first = storage.get_trial_id_from_study_id_trial_number(id_of(study), 0)
        return storage.get_trial(first).user_attrs.get(OUTCOME)
    return None
