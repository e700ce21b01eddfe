"""Policies by name: ours, and whatever is installed under the entry-point group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from optuna_deadline.policies.asha import Asha, AshaPromote
from optuna_deadline.policies.early import Median, OneEpoch
from optuna_deadline.policies.fifo import Fifo
from optuna_deadline.policies.halving import Hyperband, SuccessiveHalving
from optuna_deadline.policies.hypersched import HyperSched
from optuna_deadline.policies.plan import Policy

GROUP = "optuna_deadline.policies"
DEFAULT = "hypersched"
_OURS: dict[str, Callable[..., Policy]] = {
    "hypersched": HyperSched,
    "fifo": Fifo,
    "asha": Asha,
    "asha_promote": AshaPromote,
    "median": Median,
    "successive_halving": SuccessiveHalving,
    "hyperband": Hyperband,
    "one_epoch": OneEpoch,
}


def known_policies() -> list[str]:
    """Every name that can be asked for, the default first."""
    others = {*_OURS, *(point.name for point in entry_points(group=GROUP))} - {DEFAULT}
    return [DEFAULT, *sorted(others)]


def make_policy(name: str, parameters: Mapping[str, Any]) -> Policy:
    """A policy by its name.

    Raises:
        KeyError: Nobody has registered the name.
        TypeError: The policy does not take one of the parameters.
    """
    if name in _OURS:
        return _OURS[name](**parameters)
    for point in entry_points(group=GROUP):
        if point.name == name:
            policy: Policy = point.load()(**parameters)
            return policy
    raise KeyError(name)
