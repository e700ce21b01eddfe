"""``optuna-deadline events``: what happened to a study, one line each."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from optuna_deadline.allocation.records import Event
from optuna_deadline.allocation.sql.store import AllocationTable
from optuna_deadline.cli.app import Json, Storage, Study, command, say_json
from optuna_deadline.cli.studies import load_study
from optuna_deadline.history.reader import table_of
from optuna_deadline.history.text import tell
from optuna_deadline.history.words import at_clock


@command
def events(
    study: Study,
    storage: Storage,
    last: Annotated[int, typer.Option(min=1, help="How many, the newest.")] = 50,
    trial: Annotated[int | None, typer.Option(help="Of one trial alone.")] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Of one kind, as in plan; again for more.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what happened to a study: plans, grants, releases, ends; the oldest first."""
    table, terms = table_of(load_study(study, storage))
    places = {slot.id: f"{slot.device} on {slot.host}" for slot in table.slots()}
    found: deque[tuple[Event, str]] = deque(maxlen=last)
    for event in _of(table, kind):
        words = tell(event, terms.name, places.get(event.slot or 0, f"slot {event.slot}"))
        if trial in (None, event.number) and (as_json or kind or words):
            found.append((event, words or event.kind))
    if as_json:
        say_json([{**asdict(event), "words": words} for event, words in found])
        return
    if kind and not found:
        known = ", ".join(sorted({event.kind for event in _of(table)}))
        print(
            f"Nothing of that kind has happened to {study} (there are: {known}).", file=sys.stderr
        )
    for event, words in found:
        print(f"{at_clock(event.at)}  {words}")


def _of(table: AllocationTable, kind: list[str] | None = None) -> Iterator[Event]:
    """A study's events, the oldest first."""
    after = 0
    while page := table.events(after, kind):
        after = page[-1].id
        yield from page
