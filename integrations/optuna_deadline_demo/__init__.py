"""The tasks of the demo: small networks that train anywhere, on data that needs no download."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Direction: TypeAlias = Literal["minimize", "maximize"]


class Task(NamedTuple):
    """What is known of a task before torch is imported.

    The module of the same name has the rest, in its ``objective``.
    """

    name: str
    direction: Direction
    deadline: str  #: long enough to show what the policy does
    about: str

    @property
    def objective(self) -> str:
        """The objective as ``MODULE:NAME``."""
        return f"{__name__}.{self.name}:objective"


TASKS = {
    task.name: task
    for task in (
        Task("digits", "maximize", "60s", "a network that reads scikit-learn's digits"),
        Task("bytes", "minimize", "3m", "a small GPT on the sources of Python's library"),
        Task("mnist1d", "maximize", "3m", "a network that names noisy curves in ten classes"),
    )
}
