"""What metrics of torchmetrics add up over the slots: what was measured on divided batches.

A training batch is divided between the slots, so a metric of it is combined from all of them. What
is evaluated every slot sees whole: combined, a sum would count it once for each slot. So each
metric remembers of which kind its last update was, and what a slot measured in a batch that it has
no sample of, but a padding, is taken back. Means that do not weigh slices are warned of.
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
    """How often a metric was updated, and whether with data that every slot sees whole.

    An int, so that whatever copies a metric's count copies this.
    """

    whole = False

    @classmethod
    def of(cls, count: int, whole: bool) -> UpdateCount:
        """So many updates of one kind."""
        made = cls(count)
        made.whole = whole
        return made


class MetricWatcher:
    """The metrics of this process.

    Args:
        evaluates: Whether the data in hand is seen whole by every slot.
        tells: Whether to warn of a mean that is not weighed; asked where there is one.
    """

    def __init__(
        self, evaluates: Callable[[], bool], tells: Callable[[], bool] = lambda: True
    ) -> None:
        self.evaluates = evaluates
        self._tells = tells
        self._judged: set[int] = set()  # means, of which one batch is enough
        self._weight = 1.0
        self._before: dict[int, tuple[Any, dict[str, Any]]] = {}

    def watch(self) -> None:
        """Look at every metric from now on; again where torchmetrics was imported meanwhile."""
        global _current
        _current = self
        if (torchmetrics := sys.modules.get("torchmetrics")) is not None:
            _watch(getattr(torchmetrics, "Metric", None))

    def begin_batch(self, *, weight: float) -> None:
        """A batch follows; where this slot's part is a padding, of weight 0, it does not count."""
        self._weight = weight

    def end_batch(self) -> None:
        """Take back what was measured on a padding, and look at means of slices."""
        padded, self._weight = self._weight == 0.0, 1.0
        for metric, before in self._before.values():
            if padded:
                for name, value in before.items():
                    setattr(metric, name, value)
            else:
                self._judge(metric, before)
        self._before = {}

    def note(self, metric: Any) -> None:
        """The metric is about to change."""
        first = id(metric) not in self._before and _COUNT in vars(metric)
        mean = self._weight != 1.0 and type(metric).__name__ == "MeanMetric"
        noted = self._weight == 0.0 or (mean and id(metric) not in self._judged)
        if noted and first and not self.evaluates():
            before = metric._copy_state_dict()
            before.update({name: getattr(metric, name) for name in (_COUNT, *_PARTS)})
            self._before[id(metric)] = metric, before

    def _judge(self, mean: Any, before: dict[str, Any]) -> None:
        """Warn where a slice has counted as one value, however long it is."""
        self._judged.add(id(mean))
        updates = mean._update_count - before[_COUNT]
        if updates > 0 and float(mean.weight - before["weight"]) == updates and self._tells():
            _log.warning(
                "An unweighted MeanMetric counts the slices of a batch alike, and the slots do not"
                " share it evenly: weigh each value, as in `self.mean(loss, len(x))`, or choose a"
                " batch_size that the slots divide."
            )


def measured_whole(metric: Any) -> bool:
    """Whether every slot has measured the same with a metric, of data that it saw whole."""
    return bool(getattr(getattr(metric, _COUNT), "whole", False))


_current: MetricWatcher | None = None


class _UpdateCounter:
    """Takes the place of a metric's count of updates, which changes at each of them."""

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
