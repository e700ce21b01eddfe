"""Pictures of the results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def picture(path: Path, panels: int = 1, size: tuple[float, float] = (4.2, 3.4)) -> Iterator[Any]:
    """Axes side by side, each of a size in inches, written to a file at the end."""
    from matplotlib.figure import Figure

    width, height = size
    figure = Figure(figsize=(width * panels, height), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)
    yield list(axes[0])
    figure.savefig(path, dpi=110)
