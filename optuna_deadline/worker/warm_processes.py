"""Paused trials whose processes wait in this worker's memory without a slot.

In the table they are paused with a checkpoint, like any other trial. So in any doubt the process
is ended.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import replace

from optuna_deadline.allocation.records import PlannedTrial
from optuna_deadline.directives import Directive, Kind
from optuna_deadline.worker.segment import Gang

#: Seconds without a message after which a warm process is ended; it sends one every five.
_SILENCE_SECONDS = 60.0


class WarmProcesses:
    """The warm processes of one worker.

    Args:
        max_warm: The most warm processes.
        any_slot: Whether a process can go on with any slot (CPU shares) or only with its former
            one.
    """

    def __init__(self, max_warm: int, *, any_slot: bool) -> None:
        self._max_warm = max_warm
        self._any_slot = any_slot
        self._kept: dict[int, Gang] = {}  # by trial number
        self._ending: list[Gang] = []

    @property
    def gangs(self) -> list[Gang]:
        """All gangs with living processes, including those that are being ended."""
        return [*self._ending, *self._kept.values()]

    def allow_keeping_warm(
        self, directive: Directive, gang: Gang, others: Iterable[Gang]
    ) -> Directive:
        """Allow the process to stay, if there is room for another one."""
        if directive.kind is not Kind.PAUSE or gang.size != 1:
            return directive
        coming = sum(1 for other in others if other is not gang and other.directive.keep_warm)
        return replace(directive, keep_warm=len(self._kept) + coming < self._max_warm)

    def keep_warm(self, gang: Gang) -> None:
        """Keep a process whose slot was released."""
        self._kept[gang.number] = gang

    def reconcile(self, rows: Collection[PlannedTrial]) -> None:
        """End processes that the plan has retired or moved, and forget dead ones."""
        wanted = {(row.number, row.fence) for row in rows if row.owner is None}
        for number, gang in list(self._kept.items()):
            if (number, gang.grant.fence) not in wanted or _has_ended(gang) or _is_silent(gang):
                self.end(number)
        for gang in [gang for gang in self._ending if gang.exited]:
            self._ending.remove(gang)

    def slot_for(self, row: PlannedTrial, free: Collection[int]) -> int | None:
        """The free slot on which a trial's warm process can go on; None if there is none."""
        gang = self._kept.get(row.number)
        if gang is None or _has_ended(gang) or (row.slots, row.fence) != (1, gang.grant.fence):
            return None
        had = gang.grant.slots[0][0]
        if had in free:
            return had
        return min(free, default=None) if self._any_slot else None

    def least_missed_first(self, free: Collection[int]) -> list[int]:
        """Free slots, first those that no warm process needs."""
        missed = {gang.grant.slots[0][0] for gang in self._kept.values()}
        return sorted(free, key=lambda slot: (slot in missed, slot))

    def wake(self, number: int, gang: Gang) -> None:
        """Let a warm process go on as the rank of a new segment that is already listed."""
        [rank] = self._kept[number].ranks
        gang.call_soon(lambda: gang.add_warm_rank(rank))
        del self._kept[number]

    def end(self, number: int) -> None:
        """End a trial's warm process, if there is one."""
        gang = self._kept.get(number)
        if gang is not None:
            self._ending.append(gang)
            del self._kept[number]
            gang.lose()  # its messages no longer count

    def clear(self) -> None:
        """End all of them."""
        for number in list(self._kept):
            self.end(number)


def _is_silent(gang: Gang) -> bool:
    """Whether it sent nothing for so long that messages to it may fill its pipe."""
    return (
        gang.last_message_at is not None
        and time.monotonic() - gang.last_message_at > _SILENCE_SECONDS
    )


def _has_ended(gang: Gang) -> bool:
    return any(rank.exited or rank.closed or rank.end_message is not None for rank in gang.ranks)
