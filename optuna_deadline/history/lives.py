"""What trials and slots went through, as frozen values. Instants are the database's seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hold:
    """One slot in one trial's hands. Of one slot no two ever overlap."""

    slot: int
    number: int
    start: float
    end: float | None  #: None while it lasts
    study_id: int | None = None


@dataclass(frozen=True)
class Spell:
    """One segment as a person sees it: a trial on its slots, and why from and until when."""

    number: int
    fence: int
    slots: tuple[int, ...]
    worker: str | None
    start: float
    end: float | None  #: None while it trains
    why: str  #: the plan's reason when it began
    ended: str = ""  #: pause, resize, deadline, lost, ...
    why_ended: str = ""  #: the plan's reason for that

    def until(self, now: float) -> float:
        """Its end, or now."""
        return now if self.end is None else self.end


@dataclass(frozen=True)
class Wait:
    """A trial without a slot that can still be trained."""

    start: float
    end: float | None
    why: str


@dataclass(frozen=True)
class Life:
    """One trial from its opening to its end."""

    number: int
    opened: float
    state: str  #: ready, running, paused, retired, failed, complete
    spells: tuple[Spell, ...] = ()
    waits: tuple[Wait, ...] = ()
    ended: float | None = None
    why: str = ""  #: why it is in this state, in the planner's words

    @property
    def slots(self) -> int:
        """Slots that it holds now."""
        last = self.spells[-1] if self.spells else None
        return len(last.slots) if last is not None and last.end is None else 0

    def slot_seconds(self, now: float) -> float:
        """Seconds times slots that it held so far."""
        return sum(len(spell.slots) * (spell.until(now) - spell.start) for spell in self.spells)
