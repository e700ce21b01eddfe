"""The events of a study, for ``optuna-deadline status --events``."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict

import optuna

from optuna_deadline._printable import printable
from optuna_deadline.allocation.records import Event
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.cli.app import print_json
from optuna_deadline.history.reader import read_history, table_of
from optuna_deadline.history.text import event_sentence, format_time_of_day


def show_events(
    loaded: optuna.Study, last: int, trial: int | None, kind: list[str] | None, as_json: bool
) -> None:
    """Show the events of a study, oldest first: plans, grants, releases, ends.

    Args:
        loaded: The study.
        last: Number of events, the newest ones.
        trial: Only events of this trial.
        kind: Only events of these kinds.
        as_json: Whether to print JSON.
    """
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
        print(f"{terms.name} has no events of that kind (it has: {known}).", file=sys.stderr)
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
