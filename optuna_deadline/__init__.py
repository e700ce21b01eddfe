"""The best model by a deadline, from the GPUs there are: an extension of Optuna."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optuna_deadline._best import best
    from optuna_deadline._forecast import forecast, what_if
    from optuna_deadline._out_of_time import out_of_time
    from optuna_deadline.callbacks import DeadlineGate
    from optuna_deadline.elastic import Result, run
    from optuna_deadline.prices import Price
    from optuna_deadline.pruners import DeadlinePruner
    from optuna_deadline.samplers import DeadlineSampler
    from optuna_deadline.segments import Segment, SegmentEnd, segment
else:
    # A rank asks for its segment alone: it starts without the table and the policies.
    _HOMES = {
        "best": "_best",
        "forecast": "_forecast",
        "what_if": "_forecast",
        "out_of_time": "_out_of_time",
        "Price": "prices",
        "DeadlineGate": "callbacks",
        "Result": "elastic",
        "run": "elastic",
        "DeadlinePruner": "pruners",
        "DeadlineSampler": "samplers",
        "Segment": "segments",
        "SegmentEnd": "segments",
        "segment": "segments",
    }

    def __getattr__(name):
        from importlib import import_module

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
    "Price",
    "Result",
    "best",
    "forecast",
    "what_if",
    "out_of_time",
    "run",
    "Segment",
    "SegmentEnd",
    "segment",
]
