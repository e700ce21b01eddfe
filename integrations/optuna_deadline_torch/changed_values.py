"""What has changed since a segment began, in a form that a checkpoint may hold.

A checkpoint has parameters, buffers, and what has a ``state_dict``. A count, a list of losses, a
tensor that is no buffer, a global variable or the set of trained parameters would start again in
each segment. So whatever has changed since a segment's first step is saved too, if it consists of
numbers, texts and tensors. What has changed and cannot be saved is named once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from optuna_deadline_torch.consensus import Consensus
from optuna_deadline_torch.object_walk import Lost, ObjectWalk
from optuna_deadline_torch.packing import same

_log = logging.getLogger(__name__)


class ChangedValues:
    """The plain values of a training that it has changed.

    Args:
        walk: Finds the values.
        tells: Whether to log something about a topic.
        apart: What to do about values that each slot keeps for itself, as a sentence.
        lost: What to do about values that cannot be saved, as a sentence.
    """

    def __init__(
        self, walk: Callable[[], ObjectWalk], tells: Callable[[str], bool], apart: str, lost: str
    ) -> None:
        self._walk = walk
        self._should_log = tells
        self._advice_apart, self._advice_lost = apart, lost
        self._saved: Mapping[str, Any] = {}
        self._kept: set[str] = set()  # names of what was saved, which stays so
        self._first: dict[str, Any] | None = None  # at this segment's first step

    def values(self) -> dict[str, Any]:
        """All values as they are now."""
        return self._walk().values()

    def _of_this_rank(self, rank: int, world_size: int) -> dict[str, Any]:
        each = self._saved["each"]
        own = each[rank if len(each) == world_size else 0] if each else {}
        return {**self._saved["all"], **own}

    def _divided(
        self, consensus: Consensus, now: Mapping[str, Any], also: Collection[str] = ()
    ) -> tuple[set[str], dict[str, Any]]:
        """The changed values that have a plain form; every rank calls it.

        Args:
            consensus: Of the segment's ranks.
            now: The values.
            also: Names of values that are saved although this segment has not changed them.

        Returns:
            The names, and the values: those that all ranks have alike, and those of each rank.
        """
        first = now if self._first is None else self._first  # none before training has started
        names = changed(first, now) | ((self._kept | {*also}) & now.keys())
        lost = {name for name in names if isinstance(now[name], Lost)}
        names -= lost
        parts = consensus.gather({name: now[name] for name in now if name in names})
        alike = {
            name: node
            for name, node in parts[0].items()
            if all(name in part and same(node, part[name]) for part in parts)
        }
        apart = [name for name in parts[0] if name not in alike]
        lost &= {*first, *(name for name in lost if isinstance(now[name].shown, type))}
        self._warn(apart, sorted(lost), len(parts))
        each = [{name: part[name] for name in apart if name in part} for part in parts]
        return names, {"all": alike, "each": each if apart else []}

    def _warn(self, apart: Sequence[str], lost: Sequence[str], slots: int) -> None:
        if apart and self._should_log("attributes apart"):
            _log.warning(
                "Each of the trial's %d slots keeps attributes of the module (%s) for itself: they"
                " are of its part of the batches, and on another number of slots all go on with"
                " those of the first one. %s",
                slots,
                ", ".join(apart),
                self._advice_apart,
            )
        if lost and self._should_log("attributes lost"):
            _log.warning(
                "These values start again each time that the trial comes back: %s. They"
                " are too large for its checkpoints, or have more in them than numbers, texts"
                " and tensors. %s",
                ", ".join(lost),
                self._advice_lost,
            )


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> set[str]:
    """The names of the values that are new or others."""
    return {name for name in now if name not in before or not same(before[name], now[name])}
