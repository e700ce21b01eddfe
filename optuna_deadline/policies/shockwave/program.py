"""The market's programme over a window of rounds: how many rounds each job gets.

    max  sum_j w_j U(s_j + c_j d_j) + sum_j [D_j <= R] c_j / D_j
         - pressure * sum_j g_j max(0, D_j - c_j - H)
    s.t. sum_j g_j c_j <= G R,   0 <= c_j <= min(R, D_j) whole

with ``c`` rounds of the window's ``R``, gangs ``g`` of ``G`` GPUs, progress ``s`` and what a round
adds to it ``d``, rounds left ``D``, weights ``w``, and ``U`` the logarithm of the progress, linear
between 0, 0.2 ... 1 as in Shockwave's code. The order of rounds is not part of it (:func:`order`).

The other two terms are our reconstruction. The second one pays 1 for each job that ends in the
window: of two with the same due time, the shorter one goes first, for the mean completion time.
In the third ``H = max(0, sum_j g_j D_j / G - R)`` is when the cluster
would be done after the window if no GPU ever idled; work beyond ``H`` finds idle GPUs beside it.
The paper puts a bound of the makespan there and its code the longest job left. The longest alone
hides all others: as long as it sticks out, what sticks out of theirs costs nothing.

The objective is a sum of concave functions of each ``c_j`` and there is one row, so taking single
rounds by their gain per GPU solves the linear relaxation, and misses the whole optimum by less
than what one gang could gain (:func:`by_gain`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optuna_deadline.errors import DeadlineError

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_BASES = np.linspace(0.0, 1.0, 6)
_LOGS = np.log(np.maximum(_BASES, 1e-6))
#: Of the utility's linear pieces.
SLOPES = np.diff(_LOGS) / np.diff(_BASES)
OFFSETS = _LOGS[:-1] - SLOPES * _BASES[:-1]

#: The exponent of rho for a job that has less than a round to go: it is let out.
_LAST_ROUND = 100.0
#: Upper bound of a weight; larger ones only lose precision.
_HEAVIEST = 1e6


def utility(progress: Array) -> Array:
    """The logarithm of the progress, linear between the bases; at most 0."""
    lines = progress[..., None] * SLOPES + OFFSETS
    return np.asarray(np.minimum(0.0, lines.min(axis=-1)))


def slope(progress: float) -> float:
    """What progress adds to the utility at a point; 0 at the end."""
    if progress >= 1.0:
        return 0.0
    return float(SLOPES[int(progress * len(SLOPES))])


@dataclass(frozen=True, eq=False)
class Programme:
    """What is to be decided; one entry for each job."""

    gangs: Array
    weights: Array
    progress: Array  #: from 0 to 1
    step: Array  #: what a round adds to the progress
    left: Array  #: rounds to the end
    gpus: int
    rounds: int
    pressure: float  #: what a GPU's round beyond the common end costs

    @property
    def most(self) -> Counts:
        """Rounds that a job can use."""
        return np.minimum(self.rounds, np.ceil(self.left - 1e-9)).astype(np.int64)

    @property
    def common_end(self) -> float:
        """``H``, in rounds after the window."""
        return max(0.0, float(self.gangs @ self.left) / self.gpus - self.rounds)

    @property
    def ending(self) -> Array:
        """What each round brings a job nearer to an end within the window; 0 if it has none."""
        return np.where(self.left <= self.rounds, 1.0 / np.maximum(1.0, self.left), 0.0)

    def gains(self) -> Array:
        """What the first, the second, ... round of each job adds to the objective."""
        rounds = np.arange(self.rounds + 1)
        reached = np.minimum(1.0, self.progress[:, None] + rounds * self.step[:, None])
        beyond = np.maximum(0.0, self.left[:, None] - rounds - self.common_end)
        value = self.weights[:, None] * utility(reached)
        value -= self.pressure * self.gangs[:, None] * beyond
        return np.asarray(np.diff(value, axis=1) + self.ending[:, None])

    def value(self, counts: Counts) -> float:
        """The objective, minus its value for an empty plan."""
        taken = np.arange(self.rounds) < counts[:, None]
        return float(self.gains()[taken].sum())


def by_gain(programme: Programme) -> Counts:
    """Take single rounds by their gain per GPU until the window is full."""
    gains, rounds = programme.gains(), programme.rounds
    ranked = np.argsort(-(gains / programme.gangs[:, None]), axis=None, kind="stable")
    jobs, nth = np.divmod(ranked, rounds)
    useful = nth < programme.most[jobs]
    jobs = jobs[useful]
    counts = np.zeros(len(gains), dtype=np.int64)
    room = float(programme.gpus * rounds)
    sizes = programme.gangs[jobs]
    whole = int(np.searchsorted(np.cumsum(sizes), room, side="right"))
    np.add.at(counts, jobs[:whole], 1)
    room -= float(sizes[:whole].sum())
    passed: set[int] = set()  # a job that did not fit gets none of its later rounds either
    for job in jobs[whole:]:
        if room < 1:
            break
        if programme.gangs[job] <= room and int(job) not in passed:
            counts[job] += 1
            room -= float(programme.gangs[job])
        else:
            passed.add(int(job))
    return counts


def order(programme: Programme, counts: Counts, ran: NDArray[np.bool_]) -> list[list[int]]:
    """For each round the indices of the jobs that run.

    Shockwave orders them by a second integer programme that puts heavy jobs first; its first
    rounds decide which jobs run, since the next plan comes before the window ends. Here the rounds
    are filled one after the other: jobs that need every remaining round run first, then running
    jobs go on, since stopping one costs a restart, then the heaviest per round. The middle rule is
    ours.

    A job may get fewer rounds than it was given where gangs do not fill the GPUs; the next plan
    makes up for it.

    Args:
        programme: The jobs.
        counts: The rounds that each is to get.
        ran: The jobs of the round before the window.
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


def check_weights(pressure: float, exponent: float, overdue: float) -> None:
    """Check what weighs the market's terms.

    Raises:
        DeadlineError: One of them is invalid.
    """
    if min(pressure, exponent) < 0 or overdue <= 1:
        raise DeadlineError(
            "pressure and exponent must not be negative and overdue must be above 1, but got "
            f"{pressure!r}, {exponent!r} and {overdue!r}."
        )


def weight_of(late: float, nearly: bool, exponent: float) -> float:
    """``rho ** exponent`` for a job that is late, else 1; more for one that is nearly done."""
    if late <= 1.0:
        return 1.0
    return float(min(_HEAVIEST, late ** (_LAST_ROUND if nearly else exponent)))
