"""An Optuna sampler chooses among the configurations of a table.

The table's hyper-parameters span the space: names, and numbers from their smallest to their
largest, logarithmic if that is a factor of :data:`_WIDE` or more. A suggestion is replaced by the
nearest untrained configuration, by the distance of scaled parameters. This rule is our own; it
affects all samplers alike.

Tables of a kind are the same search on other data, so a study on one table can be an earlier study
of another. The spaces of tables differ. A number of an earlier study that lies outside is moved to
the bound; a name that does not exist here is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from optuna_deadline import DeadlineSampler
from optuna_deadline.samplers._prospects import Look, Situation
from optuna_deadline.simulation.environment import World
from optuna_deadline.simulation.workload import Workload

#: Optuna's default sampler alone and inside DeadlineSampler; random sampling, which shows the
#: effect of the mapping into the table; and DeadlineSampler after studies on the kind's other
#: tables, which knows more than all others.
SAMPLERS = ("tpe", "deadline", "uniform", "earlier")

_WIDE = 50.0
_STATES = {"complete": TrialState.COMPLETE, "retired": TrialState.PRUNED}


class AskedSampler:
    """A sampler that sees a simulated study as an Optuna study.

    Args:
        parameters: By configuration of the study's workload.
        space: Their distributions.
        make_sampler: Makes the sampler, with what a DeadlineSampler looks at.
    """

    def __init__(
        self,
        parameters: Sequence[Mapping[str, Any]],
        space: Mapping[str, BaseDistribution],
        make_sampler: Callable[[Look], BaseSampler],
    ) -> None:
        self._parameters, self._space = parameters, space
        self._situation = Situation(math.inf, None, {})
        self._sampler = make_sampler(lambda *_: self._situation)

    def study(self, world: World) -> optuna.Study:
        """The study as it is now; a trial that it asks for has the sampler's suggestions."""
        workload = world.workload
        self._situation = Situation(
            world.deadline - world.timeline.now(),
            workload.steps,
            {
                trial: workload.step_seconds[configuration]
                for trial, configuration in world.configurations.items()
            },
        )
        study = optuna.create_study(direction="maximize", sampler=self._sampler)
        study.add_trials(trials_of(world, self._parameters, self._space))
        return study


class NearestSearch:
    """A sampler's search in a workload: each suggestion becomes the nearest configuration.

    Args:
        workload: The configurations.
        space: Their parameters.
        make_sampler: Makes the sampler, with what a DeadlineSampler looks at.
    """

    def __init__(
        self,
        workload: Workload,
        space: Mapping[str, BaseDistribution],
        make_sampler: Callable[[Look], BaseSampler],
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._workload, self._space = workload, dict(space)
        self._parameters = [
            {name: as_in(space, given.get(name)) for name, space in self._space.items()}
            for given in workload.hyperparameters
        ]
        self._places = np.array([self._place(given) for given in self._parameters])
        self._asked = AskedSampler(self._parameters, self._space, make_sampler)

    def __call__(self, world: World, number: int) -> int:
        """The untrained configuration that is nearest to the sampler's suggestion."""
        taken = set(world.configurations.values())
        free = [place for place in range(len(self._places)) if place not in taken]
        if not free:  # a small table starts again
            return self._workload.configuration(number)
        suggested = self._place(self._asked.study(world).ask(self._space).params)
        distances = np.square(self._places[free] - suggested).sum(axis=1)
        return free[int(distances.argmin())]

    def _place(self, given: Mapping[str, Any]) -> list[float]:
        """Parameters as a point in a cube; two names are as far apart as a number's bounds."""
        found: list[float] = []
        for name, space in self._space.items():
            if isinstance(space, FloatDistribution):
                scale = math.log if space.log else float
                low, high = scale(space.low), scale(space.high)
                found.append((scale(given[name]) - low) / (high - low))
            elif isinstance(space, CategoricalDistribution):
                found += [math.sqrt(0.5) * (given[name] == choice) for choice in space.choices]
        return found


class TableSearch(NearestSearch):
    """One study's search in one table.

    Args:
        workload: The table, in the study's order.
        sampler: One of :data:`SAMPLERS`.
        seed: The seed of the sampler.
        earlier: Earlier studies, for the sampler that uses them.
    """

    def __init__(
        self, workload: Workload, sampler: str, seed: int, earlier: Sequence[World] = ()
    ) -> None:
        def make(look: Look) -> BaseSampler:
            if sampler == "uniform":
                return RandomSampler(seed=seed)
            inner = TPESampler(seed=seed)
            if sampler == "tpe":
                return inner
            known = [self._study(world) for world in earlier]
            return DeadlineSampler(inner, look=look, warm_start_from=known)

        super().__init__(workload, space_of(workload), make)

    def _study(self, world: World) -> optuna.Study:
        """An earlier study, with the parameters of this space."""
        study = optuna.create_study(direction="maximize")
        given = [_fitted(self._space, one) for one in world.workload.hyperparameters]
        study.add_trials(trials_of(world, given, self._space))
        return study


def trials_of(
    world: World, parameters: Sequence[Mapping[str, Any]], space: Mapping[str, BaseDistribution]
) -> list[FrozenTrial]:
    """The trials of a study as Optuna's trials, with the parameters of their configurations."""
    reports: dict[int, dict[int, float]] = {}
    for row in world.table.reports():
        reports.setdefault(row.number, {})[row.step] = row.value
    found = []
    for line in world.table.trials():
        if line.number not in world.configurations:
            continue
        state = _STATES.get(line.state, TrialState.RUNNING)
        if state == TrialState.COMPLETE and (line.value is None or math.isnan(line.value)):
            state = TrialState.FAIL  # as in Optuna if an objective returns NaN
        params = dict(parameters[world.configurations[line.number]])
        trial = create_trial(
            state=state,
            value=line.value if state == TrialState.COMPLETE else None,
            params=params,
            distributions={name: space[name] for name in params},
            intermediate_values=reports.get(line.number, {}),
        )
        found.append(trial)
    return found


def _fitted(
    space: Mapping[str, BaseDistribution], given: Mapping[str, Any]
) -> dict[str, float | str]:
    found: dict[str, float | str] = {}
    for name, kind in space.items():
        value = given.get(name)
        if isinstance(kind, FloatDistribution):
            if isinstance(value, int | float):
                found[name] = min(max(float(value), kind.low), kind.high)
        elif isinstance(kind, CategoricalDistribution) and str(value) in kind.choices:
            found[name] = str(value)
    return found


def space_of(workload: Workload) -> dict[str, BaseDistribution]:
    """The parameters in which a table's configurations differ.

    Raises:
        ValueError: The table has no hyper-parameters.
    """
    space: dict[str, BaseDistribution] = {}
    for name in dict.fromkeys(key for given in workload.hyperparameters for key in given):
        values = [given.get(name) for given in workload.hyperparameters]
        numbers = [float(v) for v in values if isinstance(v, int | float)]
        if len(numbers) == len(values):
            low, high = min(numbers), max(numbers)
            if low < high:
                space[name] = FloatDistribution(low, high, log=low > 0 and high / low >= _WIDE)
        elif len(choices := sorted({str(value) for value in values})) > 1:
            space[name] = CategoricalDistribution(choices)
    if not space:
        raise ValueError(f"{workload.name} has no hyper-parameters to choose by.")
    return space


def as_in(space: BaseDistribution, value: Any) -> float | str:
    """A table's value in the space; a missing value is a name, too."""
    return float(value) if isinstance(space, FloatDistribution) else str(value)
