"""What the trials of a study may yet come to: one possible rest of the study at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from optuna_deadline.forecasting.futures import Future, draw_places
from optuna_deadline.scenarios.initial_state import Present
from optuna_deadline.simulation.workload import Workload

#: New configurations of a draw; who opens more meets them again.
NEWCOMERS = 256


@dataclass(frozen=True)
class Rest(Workload):
    """The trials of a study by their numbers, and after them those that it may yet open."""

    first: int = 0  #: the number of the first trial that is yet to be opened

    def configuration(self, number: int) -> int:
        """The configuration that a trial trains; after the last new one the first new one."""
        if number < self.first:
            return number
        return self.first + (number - self.first) % (len(self.curves) - self.first)


class Draws:
    """Possible rests of a study, each by its number; the same number is the same rest.

    Args:
        present: Where the study stands.
        seed: Other seeds draw others.
    """

    def __init__(self, present: Present, seed: int = 0) -> None:
        self._present = present
        self._seed = seed
        self._future = lru_cache(maxsize=None)(self._look_ahead)

    def draw(self, number: int) -> Rest:
        """One rest: each trial goes on at a place of its band, each new one is like an old one.

        A new trial's curve is another one's of the study, drawn with all the same chance: as it
        was until that trial's last report, and from there on at a place of its own.
        """
        present = self._present
        rng = np.random.default_rng([self._seed, number])
        lines = present.lines
        first = max([*lines, *present.curves], default=-1) + 1
        places = draw_places(rng, first + NEWCOMERS)
        like = rng.choice(np.array(present.sources), first + NEWCOMERS).tolist()
        curves: list[tuple[float, ...]] = []
        seconds: list[float] = []
        for trial in range(first + NEWCOMERS):
            line = lines.get(trial)
            if trial < first and (line is None or not line.alive):
                curves.append((0.0,))  # it has ended and is not trained again
                seconds.append(present.usual_seconds)
                continue
            source = trial if trial in present.curves else like[trial]
            curves.append(self._future(source).draw(places[trial]))
            seconds.append(present.step_seconds(trial if trial < first else source))
        name = present.history.name
        return Rest(name, tuple(curves), tuple(seconds), every=present.every, first=first)

    def _look_ahead(self, number: int) -> Future:
        present = self._present
        return Future.of(present.curves[number], present.reports(number), present.model)
