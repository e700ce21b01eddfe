"""Learning-rate schedulers of a training whose steps may count as several."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from optuna_deadline.errors import DeadlineError

_log = logging.getLogger(__name__)


def warn_of_unnamed(objects: Iterable[Any]) -> None:
    """Warn where a scheduler of an optimizer is not among what goes on with a trial.

    torch marks the ``step`` of an optimizer that has a scheduler, except a ``ReduceLROnPlateau``.

    Args:
        objects: What a checkpoint holds: optimizers, schedulers and others.
    """
    objects = list(objects)
    served = {id(getattr(one, "optimizer", None)) for one in objects}
    for one in objects:
        marked = isinstance(one, Optimizer) and hasattr(one.step, "_wrapped_by_lr_sched")
        if marked and id(one) not in served:
            _log.warning(
                "A scheduler of %s is not given to ElasticLoop and begins again each time that the"
                " trial comes back: name it, as in ElasticLoop(..., scheduler=scheduler).",
                type(one).__name__,
            )


class Schedules:
    """Steps schedulers as often as the base batch would have, and finds who does not.

    Args:
        objects: Among which the schedulers are.
    """

    def __init__(self, objects: Iterable[Any]) -> None:
        self._last: dict[int, tuple[Any, int]] = {}
        for one in objects:
            if isinstance(one, LRScheduler) and not isinstance(one, ReduceLROnPlateau):
                self._seen(one)

    def advance(self, scheduler: Any, times: int) -> None:
        """Step a scheduler so many times."""
        for _ in range(times):
            scheduler.step()
        if id(scheduler) in self._last:
            self._seen(scheduler)

    def look(self) -> None:
        """See that nobody has stepped by itself.

        Raises:
            DeadlineError: A scheduler has.
        """
        for scheduler, last in self._last.values():
            if scheduler.last_epoch != last:
                raise DeadlineError(
                    "With scaling=... call loop.advance(scheduler) in place of scheduler.step():"
                    " on several slots a step counts as several."
                )

    def _seen(self, scheduler: Any) -> None:
        self._last[id(scheduler)] = scheduler, scheduler.last_epoch
