"""What a policy answers: a whole plan, as immutable values. Workers carry it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from optuna_deadline.policies.snapshot import Snapshot


@dataclass(frozen=True)
class Run:
    """Train on this many slots."""

    slots: int
    reason: str


@dataclass(frozen=True)
class Pause:
    """Checkpoint and leave the slots; the trial may come back."""

    reason: str


@dataclass(frozen=True)
class Retire:
    """Give the trial up: it can no longer win."""

    reason: str


Order = Run | Pause | Retire


@dataclass(frozen=True)
class Plan:
    """An order for every trial that is alive, how many new ones to start, and the gate.

    The pool grows and shrinks where slots cost money: orders are for the slots that are there, and
    ``pool_slots`` says how many there shall be, bought with their start-up or given back.

    ``holds_until`` spares questions: before that instant the policy gives the same orders, but for
    their words, of a study in which nothing else than the time has changed.
    """

    orders: Mapping[int, Order] = field(default_factory=dict)
    start: int = 0  #: new trials, one slot each
    start_reason: str = "a free slot and time enough to become useful"
    gate_open: bool = True
    pool_slots: int | None = None  #: slots there shall be; None for as many as there are
    holds_until: float | None = field(default=None, compare=False)  #: None: ask at every instant

    @cached_property
    def slots(self) -> int:
        """Slots that the plan uses."""
        return self.start + sum([o.slots for o in self.orders.values() if isinstance(o, Run)])


class Policy(Protocol):
    """Anything with ``plan``: a pure, deterministic function of the snapshot."""

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide what every trial shall do from now on."""
