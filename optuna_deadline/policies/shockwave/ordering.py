"""In which rounds of the window the jobs get what the programme gave them.

Shockwave orders them by a second integer programme that puts heavy jobs first; its first rounds
decide who really runs, since the next plan comes before the window ends. Here the rounds are
filled one after the other: who needs every round that is left must run, then who trains already
goes on, since stopping it costs a restart, then the heaviest per round. The middle rule is ours.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from optuna_deadline.policies.shockwave.program import Counts, Programme


def order(programme: Programme, counts: Counts, ran: NDArray[np.bool_]) -> list[list[int]]:
    """For each round the indices of the jobs that run.

    A job may get fewer rounds than it was given where gangs do not fill the GPUs; the next plan
    makes up for it.

    Args:
        programme: The jobs.
        counts: The rounds that each is to get.
        ran: Who was in the round before the window.
    """
    left, running = counts.copy(), ran.copy()
    heavy = programme.weights / np.maximum(1, counts)
    sizes = programme.gangs.astype(np.int64).tolist()
    window = []
    for round_ in range(programme.rounds):
        must = left >= programme.rounds - round_
        free = programme.gpus
        chosen = []
        for index in np.lexsort((-programme.gangs, -heavy, ~running, ~must)).tolist():
            if free == 0:
                break
            if left[index] > 0 and sizes[index] <= free:
                chosen.append(index)
                free -= sizes[index]
        left[chosen] -= 1
        running[:] = False
        running[chosen] = True
        window.append(chosen)
    return window
