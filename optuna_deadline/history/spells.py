"""From the audit to spells: who held which slots, from when to when, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from optuna_deadline.allocation.records import Event
from optuna_deadline.history.lives import Hold, Life, Spell, Wait

#: What is read of the audit: all but checkpoints, which are many.
KINDS = (
    "open", "plan", "acquire", "start", "resume", "release", "reap", "lost",
    "paused", "retired", "failed", "complete", "gate", "pool", "settle", "elect",
    "hold", "pin", "limit", "drain", "price", "rest", "register",
)  # fmt: skip
_ENDED = ("retired", "failed", "complete")
#: Ends that the plan has ordered; to all others its reason is another matter.
_ORDERED = ("pause", "park", "resize", "stop")


def tell_holds(events: Iterable[Event]) -> list[Hold]:
    """Every slot's holders, by the instant at which they took it.

    Args:
        events: In the order of their ids, of one study or of a whole pool.
    """
    open_: dict[int, int] = {}
    found: list[Hold] = []
    for event in events:
        slot = event.slot
        if slot is None:
            continue
        if event.kind == "acquire" and event.number is not None:
            _close(found, open_, slot, event.at)  # its release was read late
            open_[slot] = len(found)
            found.append(Hold(slot, event.number, event.at, None, event.study_id))
        elif event.kind in ("release", "reap"):
            _close(found, open_, slot, event.at)
    return found


def _close(found: list[Hold], open_: dict[int, int], slot: int, at: float) -> None:
    place = open_.pop(slot, None)
    if place is not None:
        found[place] = replace(found[place], end=at)


@dataclass
class _Telling:
    """One trial's life as far as it has been read."""

    opened: float
    state: str = "ready"
    spells: list[Spell] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    ordered: str = ""
    ended: float | None = None

    def close_wait(self, at: float) -> None:
        if self.waits and self.waits[-1].end is None:
            self.waits[-1] = replace(self.waits[-1], end=at)

    def close_spell(self, at: float, ended: str) -> None:
        if self.spells and self.spells[-1].end is None:
            why = self.ordered if ended in _ORDERED else ""
            self.spells[-1] = replace(self.spells[-1], end=at, ended=ended, why_ended=why)


def tell_lives(events: Sequence[Event]) -> list[Life]:
    """Every trial's life, by number.

    Args:
        events: One study's, in the order of their ids.
    """
    told: dict[int, _Telling] = {}
    for event in events:
        if event.number is None:
            continue
        one = told.setdefault(event.number, _Telling(event.at))
        if event.kind == "plan":
            one.ordered = str(event.detail.get("reason", ""))
        elif event.kind == "acquire" and event.slot is not None:
            one.taken.append(event.slot)
        elif event.kind in ("start", "resume"):
            _begin(one, event)
        elif event.kind == "lost":
            one.close_spell(event.at, "lost")
            _wait(one, event.at, "its worker died")
        elif event.kind == "paused":
            why = str(event.detail.get("reason", ""))
            one.close_spell(event.at, why)
            _wait(one, event.at, one.ordered or why)
        elif event.kind in _ENDED:
            _end(one, event)
    return [
        Life(
            number, one.opened, one.state, tuple(one.spells), tuple(one.waits), one.ended,
            one.ordered,
        )
        for number, one in sorted(told.items())
    ]  # fmt: skip


def _begin(one: _Telling, event: Event) -> None:
    one.close_spell(event.at, "lost")
    one.close_wait(event.at)
    one.state = "running"
    one.spells.append(
        Spell(
            number=event.number or 0,
            fence=event.fence or 0,
            slots=tuple(sorted(one.taken)),
            worker=event.worker,
            start=event.at,
            end=None,
            why=str(event.detail.get("reason", "")),
        )
    )
    one.taken = []


def _wait(one: _Telling, at: float, why: str) -> None:
    one.state = "paused"
    one.waits.append(Wait(at, None, why))


def _end(one: _Telling, event: Event) -> None:
    """A trial ends with its segment (then the event has a fence), or while it waits."""
    why = str(event.detail.get("reason", ""))
    if event.fence is None:
        one.ordered = why
    one.close_spell(event.at, why)
    one.close_wait(event.at)
    one.state, one.ended = event.kind, event.at
