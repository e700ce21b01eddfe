"""An extension of Optuna that finds the best model by a deadline with the GPUs you have."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from optuna_deadline._printable import escape_arguments

logging.getLogger(__name__).addFilter(escape_arguments)

if TYPE_CHECKING:
    __version__: str

    from optuna_deadline._out_of_time import out_of_time, time_left
    from optuna_deadline.callbacks import DeadlineGate
    from optuna_deadline.elastic import Result, extend, run
    from optuna_deadline.history.forecast import Forecast
    from optuna_deadline.options import WorkerOptions
    from optuna_deadline.pruners import DeadlinePruner, deadline_report
    from optuna_deadline.resumable import resumable
    from optuna_deadline.samplers import DeadlineSampler
    from optuna_deadline.scenarios.api import forecast, what_if
    from optuna_deadline.scenarios.comparison import WhatIf
    from optuna_deadline.segments import Segment, SegmentEnd, segment
    from optuna_deadline.study.best import best
    from optuna_deadline.values.prices import Price
else:
    # A rank imports only its segment, so it starts without the table and the policies.
    _HOMES = {
        "best": "study.best",
        "forecast": "scenarios.api",
        "Forecast": "history.forecast",
        "WhatIf": "scenarios.comparison",
        "what_if": "scenarios.api",
        "out_of_time": "_out_of_time",
        "time_left": "_out_of_time",
        "Price": "values.prices",
        "DeadlineGate": "callbacks",
        "Result": "elastic",
        "run": "elastic",
        "extend": "elastic",
        "WorkerOptions": "options",
        "DeadlinePruner": "pruners",
        "deadline_report": "pruners",
        "DeadlineSampler": "samplers",
        "resumable": "resumable",
        "Segment": "segments",
        "SegmentEnd": "segments",
        "segment": "segments",
    }

    def __getattr__(name):
        from importlib import import_module

        if name == "__version__":
            from importlib.metadata import version

            return version("optuna-deadline")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return found

    def __dir__():
        return sorted(globals().keys() | _HOMES)


__all__ = [
    "DeadlinePruner",
    "DeadlineSampler",
    "DeadlineGate",
    "deadline_report",
    "Price",
    "Result",
    "best",
    "forecast",
    "Forecast",
    "what_if",
    "WhatIf",
    "out_of_time",
    "time_left",
    "run",
    "extend",
    "WorkerOptions",
    "resumable",
    "Segment",
    "SegmentEnd",
    "segment",
]
