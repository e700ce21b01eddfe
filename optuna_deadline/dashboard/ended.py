"""Studies whose deadline has passed, for the live page: what each has found."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from typing import Any, NamedTuple

import optuna
from optuna.storages import BaseStorage

from optuna_deadline.allocation.database.access import Database
from optuna_deadline.dashboard.report import chart, report_page
from optuna_deadline.errors import StudyGone
from optuna_deadline.history.outcome import StudyOutcome, read_outcome
from optuna_deadline.study import agreement

_MOST = 12  # studies on the page, those with the latest deadlines
_FRESH = 10.0  # seconds: after a deadline, workers may still store what they have


class _Known(NamedTuple):
    version: tuple[bool, float]
    at: float
    outcome: StudyOutcome


class EndedStudies:
    """Reads a study anew only if it may have changed.

    Args:
        database: The table's database.
        storage: Optuna's storage of the same database.
    """

    def __init__(self, database: Database, storage: BaseStorage) -> None:
        self._database, self._storage = database, storage
        self._known: dict[int, _Known] = {}

    def state(self) -> list[dict[str, Any]]:
        """The studies whose deadline passed last, as JSON values."""
        now = self._database.now()
        ended = [
            (terms, settled)
            for terms, settled in agreement.read_all(self._database)
            if settled or terms.deadline <= now
        ]
        ended.sort(key=lambda one: one[0].deadline, reverse=True)
        rows = []
        for terms, settled in ended[:_MOST]:
            outcome = self._read(terms.study_id, terms.name, (settled, terms.deadline))
            if outcome is not None and outcome.over:
                rows.append(_row(terms.study_id, outcome, now))
        return rows

    def page(self, study_id: int) -> str | None:
        """The report of a study; None if it is not one of these."""
        found = self._known.get(study_id)
        return None if found is None else report_page(found.outcome)

    def chart(self, study_id: int) -> str | None:
        """Its best value against time, as an SVG image; None if it is not one of these."""
        found = self._known.get(study_id)
        return None if found is None else chart(found.outcome)

    def _read(self, study_id: int, name: str, version: tuple[bool, float]) -> StudyOutcome | None:
        known = self._known.get(study_id)
        fresh = known is not None and (version[0] or time.monotonic() - known.at < _FRESH)
        if known is not None and fresh and known.version == version:
            return known.outcome
        try:
            outcome = read_outcome(optuna.load_study(study_name=name, storage=self._storage))
        except (KeyError, StudyGone):  # it was deleted in between
            return None
        self._known[study_id] = _Known(version, time.monotonic(), outcome)
        return outcome


def _row(study_id: int, outcome: StudyOutcome, now: float) -> dict[str, Any]:
    best = None if outcome.best is None else asdict(outcome.best)
    if best is not None:
        best["value"], best["params"] = plain(best["value"]), plain(best["params"])
    return {
        "id": study_id,
        "name": outcome.study,
        "ago": now - outcome.ended,
        "best": best,
        "states": outcome.states,
        "command": outcome.command,
        "loading": outcome.loading,
    }


def plain(value: Any) -> Any:
    """A value as JSON knows it: NaN and infinities as texts."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
