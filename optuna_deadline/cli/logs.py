"""Log messages of this project, Optuna and Python as lines of JSON, for log collectors."""

from __future__ import annotations

import json
import logging
import math
import sys
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from enum import Enum
from typing import Any

import optuna

from optuna_deadline.live.top import lines, polling_views
from optuna_deadline.live.view import View
from optuna_deadline.live.watcher import StudyWatcher

_logger = logging.getLogger("optuna_deadline")
_SECONDS = 1.0
_OF_PYTHON = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Log(str, Enum):
    """The format of log messages."""

    text = "text"
    json = "json"


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON, with the fields that were passed as ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {key: _plain(v) for key, v in vars(record).items() if key not in _OF_PYTHON}
        if record.exc_info:
            fields["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(fields, default=str)


def choose(log: Log) -> None:
    """Set the format of messages until the process ends; JSON goes to standard error."""
    if log is Log.text:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    optuna.logging.disable_default_handler()
    logging.captureWarnings(True)
    for name in ("optuna_deadline", "optuna", "py.warnings"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False


def writes_json() -> bool:
    """Whether this process logs JSON."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in _logger.handlers)


def logged(watcher: StudyWatcher) -> AbstractContextManager[None]:
    """Log the events of a study until the block ends, with their figures as fields."""
    return polling_views(watcher, _SECONDS, _log)


def _log(looks: Iterator[View]) -> None:
    previous: View | None = None
    for view in looks:
        for line in lines(previous, view):
            _logger.info(line.strip(), extra=_figures(view))
        previous = view


def _figures(view: View) -> dict[str, Any]:
    return {
        "study": view.study,
        "seconds_to_deadline": round(view.time_left, 3),
        "best_value": view.best_value,
        "best_trial": view.best_trial,
        "slots_used": view.slots_used,
        "slots": view.slots_total,
        "slot_hours": round(view.slot_hours, 4),
        "spent": view.spent,
    }


def _plain(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
