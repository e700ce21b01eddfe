"""What metrics of torchmetrics add up over the slots: what was measured on divided batches.

A training batch is divided between the slots, so a metric of it is combined from all of them. What
is evaluated every slot sees whole: combined, a sum would count it once for each slot. So each
metric remembers of which kind its last update was, and what a slot measured in a batch that it has
no sample of, but a padding, is taken back.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

_COUNT = "_update_count"
_PARTS = ("_computed", "_forward_cache")


class Updates(int):
    """How often a metric was updated, and whether with data that every slot sees whole.

    An int, so that whatever copies a metric's count copies this.
    """

    whole = False

    @classmethod
    def of(cls, count: int, whole: bool) -> Updates:
        """So many updates of one kind."""
        made = cls(count)
        made.whole = whole
        return made


class Measures:
    """The metrics of this process.

    Args:
        evaluates: Whether the data in hand is seen whole by every slot.
    """

    def __init__(self, evaluates: Callable[[], bool]) -> None:
        self.evaluates = evaluates
        self._padded = False
        self._before: dict[int, tuple[Any, dict[str, Any]]] = {}

    def watch(self) -> None:
        """Look at every metric from now on; again where torchmetrics was imported meanwhile."""
        global _current
        _current = self
        if (torchmetrics := sys.modules.get("torchmetrics")) is not None:
            _watch(getattr(torchmetrics, "Metric", None))

    def begin_batch(self, *, padded: bool) -> None:
        """A batch follows; where this slot's part is a padding, it does not count."""
        self._padded = padded

    def end_batch(self) -> None:
        """Take back what was measured on a padding."""
        self._padded = False
        for metric, before in self._before.values():
            for name, value in before.items():
                setattr(metric, name, value)
        self._before = {}

    def note(self, metric: Any) -> None:
        """The metric is about to change."""
        first = id(metric) not in self._before and _COUNT in vars(metric)
        if self._padded and first and not self.evaluates():
            before = metric._copy_state_dict()
            before.update({name: getattr(metric, name) for name in (_COUNT, *_PARTS)})
            self._before[id(metric)] = metric, before


def measured_whole(metric: Any) -> bool:
    """Whether every slot has measured the same with a metric, of data that it saw whole."""
    return bool(getattr(getattr(metric, _COUNT), "whole", False))


_current: Measures | None = None


class _Count:
    """Takes the place of a metric's count of updates, which changes at each of them."""

    def __get__(self, metric: Any, owner: Any = None) -> Any:
        if metric is None:
            return self
        try:
            return vars(metric)[_COUNT]
        except KeyError:
            raise AttributeError(_COUNT) from None

    def __set__(self, metric: Any, count: int) -> None:
        if _current is not None and not isinstance(count, Updates):
            _current.note(metric)
            count = Updates.of(count, count > 0 and _current.evaluates())
        vars(metric)[_COUNT] = count


def _watch(kind: Any) -> None:
    if kind is None or isinstance(vars(kind).get(_COUNT), _Count):
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

    setattr(kind, _COUNT, _Count())
    kind.sync = synced
