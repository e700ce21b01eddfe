"""Loaders that cannot be dealt, led to the place where training was left. On one slot only.

One with a state of its own goes on from it. Any other is read again from its beginning; each read
has random numbers of its own, so one that shuffles in this process yields the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

#: The epoch and the batch that training comes to next.
Place = Callable[[], tuple[int, int]]
_KEPT = 3  # states: that of training, and those of batches that were fetched ahead


@runtime_checkable
class Stateful(Protocol):
    """A loader that says where it is, such as torchdata's ``StatefulDataLoader``."""

    def state_dict(self) -> dict[str, Any]:
        """Where it is."""

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Go on there."""


class Placed:
    """The user's loader with another iterator.

    Args:
        loader: The loader.
        place: Where training is.
    """

    def __init__(self, loader: Any, place: Place) -> None:
        self.loader = loader
        self._place = place

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)


class Reread(Placed):
    """Begun anew in each segment, and read up to where training was.

    Args:
        loader: The loader.
        place: Where training is.
        seed: Gives a read its random numbers, by epoch and batch; -1 is the beginning.
    """

    def __init__(self, loader: Any, place: Place, seed: Callable[[int, int], None]) -> None:
        super().__init__(loader, place)
        self._seed = seed

    def __iter__(self) -> Iterator[Any]:
        epoch, done = self._place()
        self._seed(epoch, -1)
        batches, number = iter(self.loader), 0
        while True:
            self._seed(epoch, number)
            try:
                batch = next(batches)
            except StopIteration:
                return
            number += 1
            if number > done:
                yield batch


class Remembering(Placed):
    """A loader with a state, whose state is that of training however far ahead it is read."""

    def __init__(self, loader: Any, place: Place) -> None:
        super().__init__(loader, place)
        self._begun: tuple[tuple[int, int], dict[str, Any]] | None = None
        self._states: dict[tuple[int, int], dict[str, Any]] = {}
        self._batches: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        place = epoch, done = self._place()
        if self._begun is not None and self._begun[0] == place:
            self.loader.load_state_dict(self._begun[1])  # nothing that it gave was trained on
        self._begun = place, self.loader.state_dict()
        self._states = {place: self._begun[1]}
        self._batches = iter(self.loader)
        for batch in self._batches:
            done += 1
            self._states[epoch, done] = self.loader.state_dict()
            if len(self._states) > _KEPT:
                del self._states[min(self._states)]
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The loader's state where training is."""
        place = self._place()
        if place in self._states:
            return self._states[place]
        last = max(self._states, default=None)
        if last is not None and self._is_all(last[1]):
            next(self._batches, None)  # its end is past the last batch: there it begins anew
        return dict(self.loader.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there."""
        self.loader.load_state_dict(state)

    def _is_all(self, batches: int) -> bool:
        try:
            return batches >= len(self.loader)
        except TypeError:
            return False
