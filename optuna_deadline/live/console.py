"""A terminal on which text cannot act."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from optuna_deadline._printable import Lines, printable


class SafeConsole(Console):
    """A console that shows control characters in text as escapes; styles and moves are rich's."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of a renderable."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(Lines(text)), style)
