"""One slot for each trial, as the methods before elastic training have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from optuna_deadline.policies.api import Order, Pause, Plan, Retire, Run
from optuna_deadline.policies.snapshot import Snapshot, TrialView


@dataclass(frozen=True)
class Claim:
    """A trial that could use a slot, and why it should have one."""

    trial: TrialView
    words: str


def one_slot_each(
    snapshot: Snapshot,
    claims: Sequence[Claim],
    settled: Mapping[int, Order] | None = None,
    *,
    newcomers: int | None = None,
    leftovers: Sequence[Claim] = (),
    holds_until: float | None = None,
) -> Plan:
    """Serve the claims in their order, then start new trials, then serve the leftovers.

    Args:
        snapshot: The study.
        claims: Served before any new trial.
        settled: Orders of trials that get no slot.
        newcomers: New trials at most; None for as many as there is room for.
        leftovers: Served where slots are free all the same.
        holds_until: Until when the caller would say the same; see :class:`Plan`.
    """
    orders: dict[int, Order] = dict(settled or {})
    gate_open = snapshot.time_left > 0 and newcomers != 0
    served = list(claims[: snapshot.capacity])
    free = snapshot.capacity - len(served)
    start = 0
    if gate_open:
        start = free if newcomers is None else min(free, newcomers)
    served += leftovers[: free - start]
    for claim in served:
        orders[claim.trial.number] = Run(1, claim.words)
    for claim in (*claims, *leftovers):
        orders.setdefault(claim.trial.number, Pause("waits for a free slot"))
    return Plan(
        orders=orders,
        start=start,
        start_reason="a free slot",
        gate_open=gate_open,
        holds_until=holds_until,
    )


def stop_the_beaten(
    snapshot: Snapshot,
    beaten: Callable[[TrialView], str | None],
    words: str,
    newcomers: int | None,
) -> Plan:
    """Give up the trials that are beaten; everybody else goes on, whatever the time.

    Args:
        snapshot: The study.
        beaten: Why a trial is given up, None where it is not.
        words: Why the others go on.
        newcomers: New trials at most; None for as many as there is room for.
    """
    orders: dict[int, Order] = {}
    claims = []
    for trial in running_first(alive(snapshot)):
        if (why := beaten(trial)) is not None:
            orders[trial.number] = Retire(why)
        else:
            claims.append(Claim(trial, words))
    end = snapshot.deadline
    return one_slot_each(snapshot, claims, orders, newcomers=newcomers, holds_until=end)


def running_first(trials: Sequence[TrialView]) -> list[TrialView]:
    """Who trains goes on; the others follow in the order of their numbers."""
    return sorted(trials, key=lambda trial: (not trial.running, trial.number))


def alive(snapshot: Snapshot) -> list[TrialView]:
    """The trials that need an order."""
    return [trial for trial in snapshot.trials if trial.alive]
