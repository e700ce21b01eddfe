"""Policies by name: ours, and whatever is installed under the entry-point group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies.api import Policy
from optuna_deadline.policies.baselines.asha import Asha, AshaPromote
from optuna_deadline.policies.baselines.fifo import Fifo
from optuna_deadline.policies.baselines.halving import Hyperband, SuccessiveHalving
from optuna_deadline.policies.baselines.naive import NaiveElastic
from optuna_deadline.policies.baselines.slaq import Slaq
from optuna_deadline.policies.baselines.stopping import Median, OneEpoch
from optuna_deadline.policies.baselines.turns import LeastAttainedService, RoundRobin
from optuna_deadline.policies.building import build
from optuna_deadline.policies.freeze_thaw.policy import FreezeThaw
from optuna_deadline.policies.hermes import Hermes
from optuna_deadline.policies.hypersched.policy import HyperSched
from optuna_deadline.policies.seer.policy import Seer
from optuna_deadline.policies.shockwave.policy import ShockwaveStudy

GROUP = "optuna_deadline.policies"
DEFAULT = "freeze_thaw"
_OURS: dict[str, Callable[..., Policy]] = {
    "freeze_thaw": FreezeThaw,
    "hypersched": HyperSched,
    "hermes": Hermes,
    "fifo": Fifo,
    "round_robin": RoundRobin,
    "slaq": Slaq,
    "least_attained_service": LeastAttainedService,
    "asha": Asha,
    "asha_promote": AshaPromote,
    "median": Median,
    "successive_halving": SuccessiveHalving,
    "hyperband": Hyperband,
    "one_epoch": OneEpoch,
    "seer": Seer,
    "naive_elastic": NaiveElastic,
    "shockwave": ShockwaveStudy,
}


def known_policies() -> list[str]:
    """Every name that can be asked for, the default first."""
    others = {*_OURS, *(point.name for point in entry_points(group=GROUP))} - {DEFAULT}
    return [DEFAULT, *sorted(others)]


def find_policy(name: str) -> Any:
    """What is registered under a name: a class, an object or a function.

    Raises:
        DeadlineError: Nobody has registered the name.
    """
    if name in _OURS:
        return _OURS[name]
    for point in entry_points(group=GROUP):
        if point.name == name:
            return point.load()
    names = ", ".join(repr(known) for known in known_policies())
    raise DeadlineError(f"There is no policy {name!r}; choose one of {names}.")


def make_policy(name: str, parameters: Mapping[str, Any]) -> Policy:
    """A policy by its name, told those of the common parameters that it takes.

    Raises:
        DeadlineError: Nobody has registered the name, or the policy does not take one of its own
            parameters.
    """
    return build(find_policy(name), parameters, repr(name))
