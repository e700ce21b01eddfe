"""Where a loop's batches come from: each loader dealt to the slots, or led to its place."""

from __future__ import annotations

from typing import Any

from optuna_deadline.errors import DeadlineError
from optuna_deadline_torch.loaders import (
    Deal,
    can_be_dealt,
    elastic_loader,
    refuse_gangs,
    tell_reread,
)
from optuna_deadline_torch.streams import Stateful


class Sources:
    """The loaders that a segment's loop has asked for.

    Args:
        deal: Makes the elastic batch sampler of a loader that can be dealt.
        slots: Of the segment; None where nothing is ever resumed.
    """

    def __init__(self, deal: Deal, slots: int | None) -> None:
        self._deal = deal
        self._slots = slots
        self._known: dict[int, tuple[Any, Any]] = {}
        self._stateful: Stateful | None = None
        self._begin_at: dict[str, Any] | None = None

    def of(self, loader: Any) -> Any:
        """What to iterate over for a loader; the same each time, so that its workers may be kept.

        Raises:
            DeadlineError: It cannot be dealt, and there are several slots.
        """
        if id(loader) not in self._known:
            if can_be_dealt(loader):
                source: Any = elastic_loader(loader, self._deal)
            else:
                source = loader
                self._lead(loader)
            self._known[id(loader)] = loader, source
        return self._known[id(loader)][1]

    def resume(self, state: dict[str, Any] | None) -> None:
        """Let the loader that has a state go on from this one."""
        self._begin_at = state

    @property
    def remembers(self) -> bool:
        """Whether a loader goes on by a state of its own."""
        return self._stateful is not None

    def state(self) -> dict[str, Any] | None:
        """The state of the loader that has one."""
        return None if self._stateful is None else self._stateful.state_dict()

    def _lead(self, loader: Any) -> None:
        if self._slots is None:
            return
        refuse_gangs(loader, self._slots)
        if isinstance(loader, Stateful):
            self._stateful = loader
            if self._begin_at is not None:
                loader.load_state_dict(self._begin_at)
                self._begin_at = None
        else:
            tell_reread(loader)


def length_of(loader: Any) -> int:
    """How many batches a loader has that cannot be dealt.

    Raises:
        DeadlineError: It does not know.
    """
    try:
        return len(loader)
    except TypeError:
        raise DeadlineError(
            "reports_per_epoch needs a loader with a length, and this one has none: leave it out,"
            " or train fewer batches in an epoch."
        ) from None
