"""The view of a study that ``study.optimize`` trains: without slots, read from Optuna's trials."""

from __future__ import annotations

from datetime import datetime, timezone

from optuna_deadline.allocation.records import Desired
from optuna_deadline.cli.live.view import TrialRow, View
from optuna_deadline.history.records import History

_SHOWN = {"retired": "pruned"}


def plain_view(history: History) -> View:
    """The study now."""
    best = history.improvements[-1] if history.improvements else None
    return View(
        study=history.name,
        time_left=history.time_left,
        deadline=datetime.fromtimestamp(history.deadline, timezone.utc).astimezone(),
        duration=history.deadline - history.started,
        maximize=history.maximize,
        gate_open=history.time_left > 0 and all(event.kind != "gate" for event in history.events),
        best_value=best.value if best else None,
        best_trial=best.number if best else None,
        best_step=best.step if best else None,
        rows=tuple(_row(history, line) for line in history.trials),
    )


def _row(history: History, line: Desired) -> TrialRow:
    values = tuple(row.value for row in history.curves.get(line.number, ()))
    return TrialRow(
        number=line.number,
        state=_SHOWN.get(line.state, line.state),
        step=history.curves[line.number][-1].step if values else None,
        value=values[-1] if values else None,
        best=(max(values) if history.maximize else min(values)) if values else None,
        curve=values,
    )
