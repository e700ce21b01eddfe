"""Shows a study below a notebook's cell while the cell runs: one table that refreshes."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console, RenderableType
from rich.terminal_theme import TerminalTheme

_COLUMNS = 110
_MIDDLE = [  # black, red, green, yellow, blue, magenta, cyan, white
    (128, 128, 128), (192, 57, 43), (30, 132, 73), (175, 120, 0), (40, 116, 166),
    (136, 78, 160), (20, 143, 119), (128, 128, 128),
]  # fmt: skip
#: Colours that can be read on light and on dark notebooks.
_COLOURS = TerminalTheme((255, 255, 255), (0, 0, 0), _MIDDLE, _MIDDLE)
#: Around rich's spans; the colours of the notebook's own theme stay.
_FRAME = '<pre style="white-space:pre;overflow-x:auto;line-height:1.25;margin:0">{code}</pre>'


def in_notebook() -> bool:
    """Whether a notebook's kernel runs this."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def show(pictures: Iterator[RenderableType]) -> None:
    """Show a picture below the cell, and put each further one in its place."""
    from IPython.display import HTML, display

    handle: Any = None
    for picture in pictures:
        shown = HTML(html_of(picture))  # type: ignore[no-untyped-call]
        if handle is None:
            handle = display(shown, display_id=True)  # type: ignore[no-untyped-call]
        else:
            handle.update(shown)


def html_of(picture: RenderableType) -> str:
    """What a terminal would show, as HTML."""
    console = Console(
        record=True, file=io.StringIO(), width=_COLUMNS, force_jupyter=False, force_terminal=True
    )
    console.print(picture)
    return console.export_html(theme=_COLOURS, inline_styles=True, code_format=_FRAME)
