"""What of a training lies on its device, and whom to tell when it goes to the host and comes back.

An object with a method ``on_park`` is told before, and may return tensors of its own that go too;
one with ``on_unpark`` is told when everything is back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optuna_deadline_torch.parked_memory import DeviceMemory, in_hand


class Holdings:
    """The objects of one training.

    Args:
        objects: The model, its optimizers and whatever else has tensors, or wants to be told.
        beyond: Classes whose objects are not looked into.
    """

    def __init__(self, objects: Sequence[Any], beyond: tuple[type, ...] = ()) -> None:
        self._objects = objects
        self._beyond = beyond

    def memory(self) -> DeviceMemory:
        """All that lies on the device now."""
        more = [told() for one in self._objects if (told := getattr(one, "on_park", None))]
        return DeviceMemory([*self._objects, *more, *in_hand()], beyond=self._beyond)

    def back(self) -> None:
        """Everything lies on the device again."""
        for one in self._objects:
            if (told := getattr(one, "on_unpark", None)) is not None:
                told()
