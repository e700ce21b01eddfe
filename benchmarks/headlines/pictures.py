"""Pictures beside the rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def picture(path: Path, panels: int) -> Iterator[list[Any]]:
    """Axes side by side to draw on, written to a file at the end."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, panels, figsize=(4.2 * panels, 3.4), squeeze=False)
    try:
        yield list(axes[0])
        figure.tight_layout()
        figure.savefig(path, dpi=130)
    finally:
        pyplot.close(figure)
