"""Parameters that all policies share, and plans with one slot per trial."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, get_args, get_type_hints

from optuna_deadline._numbers import is_count, make_plain
from optuna_deadline.errors import DeadlineError, check_counts
from optuna_deadline.policies.api import Order, Pause, Plan, Retire, Run, Snapshot, TrialView
from optuna_deadline.policies.trial_index import TrialIndex, TrialIndexCache


@dataclass(frozen=True)
class Resources:
    """The parameters of every policy, so that policies can be exchanged.

    Args:
        min_resource: The first rung, in report steps.
        max_resource: The step at which a trial is done; None takes what the objectives state.
        reduction_factor: Every rung keeps one in this many.
        n_trials: Maximum number of trials; None for as many as the time allows.
        finish: Whether a study in a pool needs slots until all of them have ended, though the
            policy may end some; without a maximum it has no effect.
    """

    min_resource: int = 1
    max_resource: int | None = None
    reduction_factor: int = 4
    n_trials: int | None = field(default=None, kw_only=True)
    finish: bool = field(default=False, kw_only=True)
    #: Whether it trains each trial to its end, as far as time allows.
    ends_no_trial: ClassVar[bool] = False
    _memory: TrialIndexCache = field(
        default_factory=TrialIndexCache, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_kinds(self)
        check_resources(self.min_resource, self.max_resource, self.reduction_factor)
        if self.n_trials is not None:
            check_counts(n_trials=self.n_trials)

    @property
    def has_work(self) -> bool:
        """Whether each trial has to be trained, if they are counted."""
        return self.ends_no_trial or self.finish

    def trials_left_to_open(self, snapshot: Snapshot) -> int | None:
        """New trials that may still be started; None without a limit."""
        if snapshot.exhausted:
            return 0
        if self.n_trials is None:
            return None
        return max(0, self.n_trials - len(snapshot.trials))

    def index_of(self, trials: tuple[TrialView, ...]) -> TrialIndex:
        """The index of all trials; fast if few have changed since the last call."""
        return self._memory.index_of(self.min_resource, self.reduction_factor, trials)

    def last_step(self, trials: Iterable[TrialView]) -> int | None:
        """The step at which a trial is complete; None if no objective has stated it."""
        horizons = [trial.horizon for trial in trials if trial.horizon is not None]
        return self.last_step_of(max(horizons, default=None))

    def last_step_of(self, stated: int | None) -> int | None:
        """The step at which a trial is done, given the objectives' last step or None."""
        if self.max_resource is None:
            return stated
        return self.max_resource if stated is None else min(self.max_resource, stated)


_KINDS: Mapping[Any, str] = {
    bool: "True or False", int: "a whole number", float: "a number", str: "a text",
    type(None): "None",
}  # fmt: skip


def check_kinds(policy: Any) -> None:
    """Check that the numbers, texts and switches of a dataclass are such; NumPy's become plain.

    Raises:
        DeadlineError: A value is of another kind than its annotation.
    """
    try:
        hints = get_type_hints(type(policy))
    except Exception:  # a user's, which name what exists only for a type checker
        return
    make_plain(policy)
    for each in fields(policy):
        kinds = get_args(hints[each.name]) or (hints[each.name],)
        value = getattr(policy, each.name)
        if not _KINDS.keys() >= set(kinds):
            continue
        fits = type(value) in kinds or (type(value) is int and float in kinds)
        if not fits or value != value:
            wanted = " or ".join(_KINDS[kind] for kind in kinds)
            raise DeadlineError(f"{each.name} must be {wanted}, but got {value!r}.")


def check_resources(min_resource: Any, max_resource: Any, reduction_factor: Any) -> None:
    """Check the first rung, the last step and the reduction factor.

    Raises:
        DeadlineError: One of them is invalid; the message names it.
    """
    if not is_count(min_resource, 1):
        raise DeadlineError(
            f"min_resource must be a whole number of steps from 1, but got {min_resource!r}."
        )
    if not is_count(reduction_factor, 2):
        raise DeadlineError(
            f"reduction_factor must be a whole number from 2, but got {reduction_factor!r}."
        )
    if max_resource is not None and not is_count(max_resource, min_resource):
        raise DeadlineError(
            f"max_resource must be a whole number of steps not below "
            f"min_resource, but got {max_resource!r} and {min_resource!r}."
        )


@dataclass(frozen=True)
class SlotCandidate:
    """A trial that could use a slot, and the reason."""

    trial: TrialView
    reason: str


def one_slot_each(
    snapshot: Snapshot,
    candidates: Sequence[SlotCandidate],
    settled: Mapping[int, Order] | None = None,
    *,
    newcomers: int | None = None,
    leftovers: Sequence[SlotCandidate] = (),
    holds_until: float | None = None,
) -> Plan:
    """Assign slots to candidates in their order, then to new trials, then to the leftovers.

    Args:
        snapshot: The study.
        candidates: Served before any new trial.
        settled: Orders of trials that get no slot.
        newcomers: Maximum number of new trials; None for as many as there are free slots.
        leftovers: Served if slots are still free.
        holds_until: See :class:`Plan`.
    """
    orders: dict[int, Order] = dict(settled or {})
    gate_open = snapshot.time_left > 0 and newcomers != 0
    served = list(candidates[: snapshot.capacity])
    free = snapshot.capacity - len(served)
    start = 0
    if gate_open:
        start = free if newcomers is None else min(free, newcomers)
    served += leftovers[: free - start]
    for claim in served:
        orders[claim.trial.number] = Run(1, claim.reason)
    for claim in (*candidates, *leftovers):
        orders.setdefault(claim.trial.number, Pause("others go first"))
    return Plan(
        orders=orders,
        start=start,
        start_reason="a free slot",
        gate_open=gate_open,
        holds_until=holds_until,
    )


def retire_beaten(
    snapshot: Snapshot,
    beaten: Callable[[TrialView], str | None],
    words: str,
    newcomers: int | None,
) -> Plan:
    """Retire the beaten trials; all others continue, whatever the time.

    Args:
        snapshot: The study.
        beaten: Why a trial retires; None if it does not.
        words: Why the others continue.
        newcomers: Maximum number of new trials; None for as many as there are free slots.
    """
    orders: dict[int, Order] = {}
    claims = []
    for trial in running_first(snapshot.alive):
        if (why := beaten(trial)) is not None:
            orders[trial.number] = Retire(why)
        else:
            claims.append(SlotCandidate(trial, words))
    end = snapshot.deadline
    return one_slot_each(snapshot, claims, orders, newcomers=newcomers, holds_until=end)


def running_first(trials: Sequence[TrialView]) -> list[TrialView]:
    """Running trials first, then the others by their numbers."""
    return sorted(trials, key=lambda trial: (not trial.running, trial.number))
