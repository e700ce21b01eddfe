"""Samplers by name, for the command line: stored in the study, so that all workers use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from optuna import samplers
from optuna.samplers import BaseSampler
from optuna.study import Study

from optuna_deadline.errors import DeadlineError
from optuna_deadline.samplers._deadline import DeadlineSampler
from optuna_deadline.study.policy_choice import import_named

_ATTRIBUTE = "optuna_deadline:sampler"
_EARLIER = "optuna_deadline:earlier"
_BY_NAME: dict[str, Callable[..., BaseSampler]] = {
    "tpe": samplers.TPESampler,
    "gp": samplers.GPSampler,
    "cmaes": samplers.CmaEsSampler,
    "qmc": samplers.QMCSampler,
    "random": samplers.RandomSampler,
    "grid": samplers.GridSampler,
}


def make_sampler(name: str, parameters: Mapping[str, Any]) -> BaseSampler:
    """A sampler by its name or place.

    Args:
        name: "tpe", "gp", "cmaes", "qmc", "random" or "grid"; or the place of a class or function
            that makes one, as "samplers.py:mine".
        parameters: Passed to it by name.

    Raises:
        DeadlineError: There is none of that name or at that place, it does not take its
            parameters, or a library that it needs is not installed.
    """
    if ":" in name:
        factory = import_named(name, "sampler", callable)
    elif name in _BY_NAME:
        factory = _BY_NAME[name]
    else:
        names = ", ".join(repr(known) for known in _BY_NAME)
        raise DeadlineError(
            f"There is no sampler {name!r}; choose one of {names}, or name your own as "
            "FILE.py:NAME or MODULE:NAME."
        )
    try:
        made = factory(**parameters)
    except (TypeError, ValueError, ImportError) as error:
        raise DeadlineError(f"The sampler {name!r} cannot be created: {error}.") from error
    if not isinstance(made, BaseSampler):
        raise DeadlineError(
            f"{name!r} made {type(made).__name__}, which is not an Optuna sampler."
        )
    return made


def keep_sampler(study: Study, name: str, parameters: Mapping[str, Any]) -> None:
    """Write the sampler's name into the study, where each worker finds it."""
    study.set_user_attr(_ATTRIBUTE, {"name": name, "parameters": dict(parameters)})


def keep_earlier(study: Study, earlier: list[str]) -> None:
    """Write down the earlier studies whose best configurations this one begins with."""
    study.set_user_attr(_EARLIER, earlier)


def sampler_of(study: Study) -> DeadlineSampler:
    """The sampler of a study that workers train, by what the study says."""
    known = study.user_attrs.get(_ATTRIBUTE)
    asked = None if known is None else make_sampler(known["name"], known["parameters"])
    return DeadlineSampler(asked, earlier=study.user_attrs.get(_EARLIER, []))
