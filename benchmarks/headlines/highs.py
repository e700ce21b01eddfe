"""Shockwave's programme as an integer programme for HiGHS, the judge of the closed form."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from optuna_deadline.policies.shockwave.program import OFFSETS, SLOPES, Counts, Programme


def by_milp(programme: Programme, seconds: float, gap: float = 1e-3) -> Counts | None:
    """Solve the programme by HiGHS.

    Args:
        programme: The programme.
        seconds: The time limit; the best solution by then is taken.
        gap: Accepted gap to the optimum, relative to it.

    Returns:
        The rounds of each job; None if nothing was found in time.
    """
    count = len(programme.gangs)
    one, none = sparse.identity(count), sparse.csr_matrix((count, count))
    # Columns: c, then U, then what sticks out beyond the common end.
    rows = [sparse.hstack([sparse.csr_matrix(programme.gangs), sparse.csr_matrix((1, 2 * count))])]
    bounds = [np.array([float(programme.gpus * programme.rounds)])]
    for slope, offset in zip(SLOPES, OFFSETS, strict=True):
        rows.append(sparse.hstack([-slope * sparse.diags(programme.step), one, none]))
        bounds.append(slope * programme.progress + offset)
    rows.append(sparse.hstack([-one, none, -one]))
    bounds.append(programme.common_end - programme.left)
    cost = np.concatenate(
        [-programme.ending, -programme.weights, programme.pressure * programme.gangs]
    )
    found = milp(
        cost / max(1.0, float(np.abs(cost).max())),
        integrality=np.repeat([1, 0, 0], count),
        bounds=Bounds(
            np.concatenate([np.zeros(count), np.full(count, -np.inf), np.zeros(count)]),
            np.concatenate([programme.most, np.zeros(count), np.full(count, np.inf)]),
        ),
        constraints=LinearConstraint(sparse.vstack(rows).tocsc(), ub=np.concatenate(bounds)),
        options={"time_limit": seconds, "mip_rel_gap": gap},
    )
    return None if found.x is None else np.round(found.x[:count]).astype(np.int64)
