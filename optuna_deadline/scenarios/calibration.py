"""Simulated ends brought down to what forecasts have been held to: pure.

Where a hundred trials are each drawn as far as they may go, the best of them is one that was drawn
too far, and the simulated end of a study is better than the real one. How the best of a study goes
on is forecast from its own course instead, which is backtested. So the draws keep their order, and
their gains keep their proportions; the level is the forecast's. Our own rule.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from optuna_deadline.forecasting.levels import LEVELS


def calibrate(
    as_it_is: Sequence[float], changed: Sequence[float], levels: Sequence[float], best: float
) -> tuple[list[float], list[float]]:
    """The scores of both ends of each draw, at the level of the forecast.

    Args:
        as_it_is: Simulated, by draw.
        changed: With a change, in the same draws; empty where nothing was changed.
        levels: The forecast of the best score as it is, at each of
            :data:`~optuna_deadline.forecasting.doublings.LEVELS`.
        best: The best score now.

    Returns:
        The draws as they are spread evenly over the forecast, in the order of their simulated
        scores; and the same with a change, which brings as large a part of what was simulated as
        the forecast's rise is of the simulated one, and never more.
    """
    before, count = np.asarray(as_it_is, dtype=float), len(as_it_is)
    after = np.asarray(changed, dtype=float) if len(changed) else before
    ranks = np.empty(count)
    ranks[np.lexsort((after, before))] = np.arange(count)
    real = np.interp((ranks + 0.5) / count, LEVELS, levels)
    simulated, forecast = float(before.mean()) - best, float(real.mean()) - best
    part = min(1.0, forecast / simulated) if simulated > 0 else 1.0
    moved = np.maximum(best, real + part * (after - before))
    return real.tolist(), moved.tolist() if len(changed) else []
