"""Samplers by name, for the command line; the study stores the name for all workers."""

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
_EARLIER = "optuna_deadline:warm_start_from"
_BY_NAME: dict[str, Callable[..., BaseSampler]] = {
    "tpe": samplers.TPESampler,
    "gp": samplers.GPSampler,
    "cmaes": samplers.CmaEsSampler,
    "qmc": samplers.QMCSampler,
    "random": samplers.RandomSampler,
    "grid": samplers.GridSampler,
}


def make_sampler(name: str, parameters: Mapping[str, Any]) -> BaseSampler:
    """Make a sampler from its name or place.

    Args:
        name: "tpe", "gp", "cmaes", "qmc", "random" or "grid"; or the place of a class or function
            that makes one, such as "samplers.py:mine".
        parameters: The keyword arguments of the sampler.

    Raises:
        DeadlineError: The sampler does not exist, does not accept a parameter, or needs a library
            that is not installed.
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
    """Store the sampler's name in the study, for all workers."""
    study.set_user_attr(_ATTRIBUTE, {"name": name, "parameters": dict(parameters)})


def keep_earlier(study: Study, earlier: list[str]) -> None:
    """Store the earlier studies whose best configurations this one starts with."""
    study.set_user_attr(_EARLIER, earlier)


def sampler_of(study: Study) -> DeadlineSampler:
    """The sampler of an elastic study, by its stored name."""
    known = study.user_attrs.get(_ATTRIBUTE)
    asked = None if known is None else make_sampler(known["name"], known["parameters"])
    return DeadlineSampler(asked, warm_start_from=study.user_attrs.get(_EARLIER, []))
