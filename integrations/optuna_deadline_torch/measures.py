"""Sums of torchmetrics' metrics over the slots, by whether batches were divided.

A training batch is divided between the slots, so a metric of it is combined from all of them.
Every slot evaluates the whole validation set, so a combined sum would count it once for each slot.
So each metric records of which kind its last update was. An update from a padding, on a slot
without a sample of the batch, is undone. Means that do not weight slices are warned about.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("optuna_deadline")
_COUNT = "_update_count"
_PARTS = ("_computed", "_forward_cache")


class UpdateCount(int):
    """The number of updates of a metric, and whether each slot had the whole data.

    An int, so that code that copies a metric's count copies this.
    """

    whole = False

    @classmethod
    def of(cls, count: int, whole: bool) -> UpdateCount:
        """A count of updates of one kind."""
        made = cls(count)
        made.whole = whole
        return made


class MetricWatcher:
    """Watches the metrics of this process.

    Args:
        evaluates: Whether every slot has the whole current data.
        tells: Whether to warn about an unweighted mean; called if there is one.
    """

    def __init__(
        self, evaluates: Callable[[], bool], tells: Callable[[], bool] = lambda: True
    ) -> None:
        self.evaluates = evaluates
        self._tells = tells
        self._judged: set[int] = set()  # means, for which one batch is enough
        self._weight = 1.0
        self._before: dict[int, tuple[Any, dict[str, Any]]] = {}

    def watch(self) -> None:
        """Watch every metric from now on; again if torchmetrics was imported in between."""
        global _current
        _current = self
        if (torchmetrics := sys.modules.get("torchmetrics")) is not None:
            _watch(getattr(torchmetrics, "Metric", None))

    def begin_batch(self, *, weight: float) -> None:
        """Start a batch; if this slot's part is a padding, of weight 0, it does not count."""
        self._weight = weight

    def end_batch(self) -> None:
        """Undo the updates from a padding, and check means of slices."""
        padded, self._weight = self._weight == 0.0, 1.0
        for metric, before in self._before.values():
            if padded:
                for name, value in before.items():
                    setattr(metric, name, value)
            else:
                self._judge(metric, before)
        self._before = {}

    def note(self, metric: Any) -> None:
        """Record that the metric is about to change."""
        first = id(metric) not in self._before and _COUNT in vars(metric)
        mean = self._weight != 1.0 and type(metric).__name__ == "MeanMetric"
        noted = self._weight == 0.0 or (mean and id(metric) not in self._judged)
        if noted and first and not self.evaluates():
            before = metric._copy_state_dict()
            before.update({name: getattr(metric, name) for name in (_COUNT, *_PARTS)})
            self._before[id(metric)] = metric, before

    def _judge(self, mean: Any, before: dict[str, Any]) -> None:
        """Warn if a slice has counted as one value, whatever its length."""
        self._judged.add(id(mean))
        updates = mean._update_count - before[_COUNT]
        if updates > 0 and float(mean.weight - before["weight"]) == updates and self._tells():
            _log.warning(
                "An unweighted MeanMetric counts the slices of a batch alike, and the slots do not"
                " share it evenly: weigh each value, as in `self.mean(loss, len(x))`, or choose a"
                " batch_size that the slots divide."
            )


def measured_whole(metric: Any) -> bool:
    """Whether every slot has the same metric, because each had the whole data."""
    return bool(getattr(getattr(metric, _COUNT), "whole", False))


_current: MetricWatcher | None = None


class _UpdateCounter:
    """Replaces a metric's count of updates, which changes at each of them."""

    def __get__(self, metric: Any, owner: Any = None) -> Any:
        if metric is None:
            return self
        try:
            return vars(metric)[_COUNT]
        except KeyError:
            raise AttributeError(_COUNT) from None

    def __set__(self, metric: Any, count: int) -> None:
        if _current is not None and not isinstance(count, UpdateCount):
            _current.note(metric)
            count = UpdateCount.of(count, count > 0 and _current.evaluates())
        vars(metric)[_COUNT] = count


def _watch(kind: Any) -> None:
    if kind is None or isinstance(vars(kind).get(_COUNT), _UpdateCounter):
        return
    sync = kind.sync

    @functools.wraps(sync)
    def synced(
        self: Any,
        dist_sync_fn: Any = None,
        process_group: Any = None,
        should_sync: bool = True,
        distributed_available: Any = None,
    ) -> None:
        should_sync = should_sync and not measured_whole(self)
        sync(self, dist_sync_fn, process_group, should_sync, distributed_available)

    setattr(kind, _COUNT, _UpdateCounter())
    kind.sync = synced
