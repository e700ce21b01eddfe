"""``status``, ``top``, ``events``, ``dashboard`` and ``metrics``: commands that show studies."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import optuna
import typer

from optuna_deadline._optuna import id_of, storage_of
from optuna_deadline._printable import printable
from optuna_deadline.allocation.database.engine import autocommit
from optuna_deadline.allocation.database.opening import connect
from optuna_deadline.allocation.records import Event, PlannedTrial
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.checking.rows import OUTCOME, summed_up
from optuna_deadline.cli.app import Json, Storage, Study, command, console, print_json
from optuna_deadline.cli.databases import load_study, measure, serving_storage
from optuna_deadline.dashboard.access import TOKEN, Protected, make_token
from optuna_deadline.dashboard.prometheus import StudyCollector, check_installed, metrics_app
from optuna_deadline.errors import DeadlineError
from optuna_deadline.history.reader import read_history, table_of
from optuna_deadline.history.records import History
from optuna_deadline.history.slot_usage import slot_usage
from optuna_deadline.history.text import event_sentence, format_time_of_day
from optuna_deadline.live.console import SafeConsole
from optuna_deadline.live.top import render, showing_study
from optuna_deadline.live.view import TrialRow, View
from optuna_deadline.live.watcher import StudyWatcher
from optuna_deadline.values.scores import score

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

_SHOWN = {"retired": "pruned"}


def plain_view(history: History) -> View:
    """Read the present state of a study."""
    best = history.improvements[-1] if history.improvements else None
    return View(
        study=history.name,
        time_left=history.time_left,
        deadline=datetime.fromtimestamp(history.deadline, timezone.utc).astimezone(),
        duration=history.deadline - history.started,
        direction=history.direction,
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
        state=_SHOWN.get(planned.state, planned.state),
        step=history.curves_by_trial[planned.number][-1].step if values else None,
        value=values[-1] if values else None,
        best=max(values, key=lambda value: score(value, history.direction), default=None),
        curve=values,
    )


_LOOK = 0.5  # seconds


@command
def status(study: Study, storage: Storage, as_json: Json = False) -> None:
    """Show a study once: time left, best value, running trials and why."""
    found = load_study(study, storage)
    table, terms = table_of(found)
    view = StudyWatcher(table, terms).view()
    with autocommit(table.database.engine) as connection:
        warning = measure(connection, table.study_id).warning
    history = read_history(found)
    if not view.rows and history.plain:
        view = plain_view(history)
    check, spent = _check_of(found), slot_usage(history)
    if as_json:
        print_json(
            {
                **asdict(view),
                "deadline": view.deadline.isoformat(),
                "warning": warning,
                "check": check,
                "slot_usage": asdict(spent),
            }
        )
        return
    screen = SafeConsole()
    screen.print(render(replace(view, limits=()), max(24, screen.height)))
    if spent.total > 0:
        screen.print(f"slots  {spent}", markup=False, highlight=False, soft_wrap=True)
    for words in view.limits:
        screen.print(words, markup=False, highlight=False, soft_wrap=True)
    if check is not None:
        words = f"check of the first trial: {summed_up(check)}"
        screen.print(words, markup=False, highlight=False, soft_wrap=True)
    if warning is not None:
        console.print(f"{study}: {warning}.", markup=False, soft_wrap=True)


@command
def top(study: Study, storage: Storage) -> None:
    """Show a study live until it ends; Ctrl-C leaves it running."""
    found = load_study(study, storage)
    table, terms = table_of(found)
    if read_history(found).plain:
        raise DeadlineError(
            f"{study} is trained by study.optimize, which does not use the table: see "
            f"'optuna-deadline status {study}'."
        )
    screen = console if console.is_terminal else SafeConsole()
    with showing_study(StudyWatcher(table, terms), screen):
        while not _is_over(table):
            time.sleep(_LOOK)
    if not table.orders("").settled:
        print(f"{study} has no worker that could end it: start one, or extend it.")


def _check_of(study: optuna.Study) -> dict[str, str] | None:
    """The result of the check of the study's first trial, if there was one."""
    storage = storage_of(study)
    with suppress(KeyError):
        first = storage.get_trial_id_from_study_id_trial_number(id_of(study), 0)
        return storage.get_trial(first).user_attrs.get(OUTCOME)
    return None


def _is_over(table: AllocationTable) -> bool:
    """Whether the study has ended, or its deadline has passed and no worker is left."""
    orders = table.orders("")
    if orders.settled or table.now() < orders.end:
        return orders.settled
    return all(worker.study_id != table.study_id for worker in table.workers())


@command
def events(
    study: Study,
    storage: Storage,
    last: Annotated[int, typer.Option(min=1, help="Number of events, the newest ones.")] = 50,
    trial: Annotated[int | None, typer.Option(help="Only events of this trial.")] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only events of this kind, as in plan; repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the events of a study, oldest first: plans, grants, releases, ends."""
    loaded = load_study(study, storage)
    table, terms = table_of(loaded)
    places = {slot.id: f"{slot.device} on {slot.host}" for slot in table.slots()}
    found: deque[tuple[Event, str]] = deque(maxlen=last)
    for event in _of(table, loaded, kind):
        words = event_sentence(
            event, terms.name, places.get(event.slot or 0, f"slot {event.slot}")
        )
        if trial in (None, event.number) and (as_json or kind or words):
            found.append((event, words or event.kind))
    if as_json:
        print_json([{**asdict(event), "words": words} for event, words in found])
        return
    if kind and not found:
        known = ", ".join(sorted({event.kind for event in _of(table, loaded)}))
        print(f"{study} has no events of that kind (it has: {known}).", file=sys.stderr)
    for event, words in found:
        print(f"{format_time_of_day(event.at)}  {printable(words)}")


def _of(
    table: AllocationTable, study: optuna.Study, kind: list[str] | None = None
) -> Iterator[Event]:
    """A study's events, the oldest first; for a plain study they come from Optuna's trials."""
    after = 0
    while page := table.events(after, kind):
        after = page[-1].id
        yield from page
    if after == 0 and (history := read_history(study)).plain:
        yield from (event for event in history.events if not kind or event.kind in kind)


Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 accepts all hosts.")]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(help="A further name by which clients reach this server; repeatable."),
]


@command
def dashboard(
    storage: Storage,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0 selects a free one.")
    ] = 8080,
    host: Host = "127.0.0.1",
    allow_host: AllowHost = None,
    write: Annotated[
        bool, typer.Option("--write", help="Allow changes, such as the deletion of studies.")
    ] = False,
) -> None:
    """Start optuna-dashboard with a live page of slots and trials; it only reads by default."""
    from optuna_deadline.dashboard.server import wsgi

    serving_storage(storage)
    _serve(
        wsgi(storage), storage, host, port, allow_host, write=write,
        pages={"Studies: ": "/dashboard", "Slots:   ": "/allocation"},
    )  # fmt: skip


@command
def metrics(
    storage: Storage,
    study: Annotated[
        list[str] | None,
        typer.Option(help="A study; repeatable; by default all that have not ended."),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; 0 selects a free one.")
    ] = 9464,
    host: Host = "127.0.0.1",
    allow_host: AllowHost = None,
) -> None:
    """Serve metrics of studies to Prometheus; one exporter serves all workers."""
    check_installed()
    serving_storage(storage)
    app = metrics_app(StudyCollector(connect(storage), study or ()))
    _serve(app, storage, host, port, allow_host, pages={"Figures: ": "/metrics"})


def _serve(
    app: WSGIApplication,
    storage: str,
    host: str,
    port: int,
    allowed: list[str] | None,
    *,
    pages: Mapping[str, str],
    write: bool = False,
) -> None:
    """Serve an application behind a token until Ctrl-C."""
    from optuna_deadline.dashboard.server import answers, make_http_server

    token, new = make_token()
    protected = Protected(
        app, token, host=host, allowed=allowed or (), write=write,
        is_healthy=lambda: answers(storage),
    )  # fmt: skip
    server = make_http_server(protected, host, port)
    for title, path in pages.items():
        query = f"?token={token}" if new else ""
        print(f"{title}http://{host}:{server.server_port}{path}{query}", flush=True)
    if not new:
        print(f"The token is in {TOKEN}.", flush=True)
    print("Ctrl-C ends it.", flush=True)
    with server:
        server.serve_forever()
