"""Policies and dividers by name, and policies from classes, objects and functions.

Names are built in or come from installed entry points.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from importlib.metadata import entry_points
from typing import Any, cast

from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies.adaptive_halving import AdaptiveHalving
from optuna_deadline.policies.api import Plan, Policy, Snapshot, checked
from optuna_deadline.policies.base import Resources, check_kinds
from optuna_deadline.policies.baselines.fifo import Fifo
from optuna_deadline.policies.baselines.halving import (
    Asha,
    AshaPromote,
    Hyperband,
    SuccessiveHalving,
)
from optuna_deadline.policies.baselines.stopping import Median
from optuna_deadline.policies.baselines.time_sharing import RoundRobin
from optuna_deadline.policies.hermes import Hermes
from optuna_deadline.policies.hypersched.policy import HyperSched
from optuna_deadline.policies.pool.fair_share import Divider, EvenDivider
from optuna_deadline.policies.pool.purse import PurseDivider
from optuna_deadline.policies.pruner import MeasuredHalving
from optuna_deadline.policies.seer.policy import Seer
from optuna_deadline.policies.shockwave.policy import Shockwave

#: The parameters of every study; policies that do not accept one do not get it.
COMMON = ("min_resource", "max_resource", "reduction_factor")


@dataclass(frozen=True)
class FunctionPolicy:
    """A function of a snapshot as a policy.

    Args:
        function: Takes the snapshot first, all else by name.
        parameters: Its arguments by name.
    """

    function: Callable[..., Plan]
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Call the function.

        Raises:
            TypeError: It returned something other than a plan.
        """
        name = getattr(self.function, "__qualname__", repr(self.function))
        return checked(self.function(snapshot, **self.parameters), name, snapshot)


def build(found: Any, parameters: Mapping[str, Any], name: str) -> Policy:
    """A policy from a class, a factory, an object or a function.

    Args:
        found: A class with ``plan``, or a function that returns an object with ``plan``: called
            with the parameters that it accepts. An object with ``plan``: used as it is. A function
            whose first argument is the snapshot: wrapped, with the parameters that it accepts.
        parameters: The three of every study, and the policy's own.
        name: For messages.

    Raises:
        DeadlineError: It is not a policy, or it does not accept one of its own parameters.
    """
    if not isinstance(found, type) and callable(getattr(found, "plan", None)):
        _refuse(name, [key for key in parameters if key not in COMMON], [])
        return cast("Policy", found)
    if not callable(found) or (isinstance(found, type) and not hasattr(found, "plan")):
        raise DeadlineError(
            f"{name} is {type(found).__name__} and not a policy: give an object with "
            "plan(snapshot), its class, or a function from snapshot to Plan."
        )
    asks = list(inspect.signature(found).parameters.values())
    decides = _decides(found, asks)
    takes = [p.name for p in asks[1:] if p.kind in _BY_NAME] if decides else _names(asks)
    if not any(p.kind is p.VAR_KEYWORD for p in asks):
        _refuse(name, [k for k in parameters if k not in takes and k not in COMMON], takes)
        parameters = {key: value for key, value in parameters.items() if key in takes}
    if decides:
        return FunctionPolicy(found, dict(parameters))
    made = found(**parameters)
    if not callable(getattr(made, "plan", None)):
        raise DeadlineError(
            f"{name} made {type(made).__name__}, which has no plan(snapshot) and is not a policy."
        )
    if is_dataclass(made) and not isinstance(made, Resources):  # which check themselves
        check_kinds(made)
    return cast("Policy", made)


_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _names(asks: list[inspect.Parameter]) -> list[str]:
    return [p.name for p in asks if p.kind in _BY_NAME]


def _decides(found: Callable[..., Any], asks: list[inspect.Parameter]) -> bool:
    """Whether it takes a snapshot first, instead of making an object that does."""
    if isinstance(found, type) or not asks:
        return False
    first = asks[0]
    positional = first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD)
    return positional and first.default is first.empty and first.name not in COMMON


def _refuse(name: str, unknown: list[str], takes: list[str]) -> None:
    if unknown:
        known = ", ".join(takes) or "none of its own"
        raise DeadlineError(f"The policy {name} takes no {unknown[0]!r}; it takes {known}.")


GROUP = "optuna_deadline.policies"
DEFAULT = "adaptive_halving"
_OURS: dict[str, Callable[..., Policy]] = {
    "adaptive_halving": AdaptiveHalving,
    "hypersched": HyperSched,
    "hermes": Hermes,
    "fifo": Fifo,
    "round_robin": RoundRobin,
    "asha": Asha,
    "asha_promote": AshaPromote,
    "median": Median,
    "successive_halving": SuccessiveHalving,
    "hyperband": Hyperband,
    "pruner": MeasuredHalving,
    "seer": Seer,
    "shockwave": Shockwave,
}


def known_policies() -> list[str]:
    """All known names, the default first."""
    others = {*_OURS, *(point.name for point in entry_points(group=GROUP))} - {DEFAULT}
    return [DEFAULT, *sorted(others)]


def find_policy(name: str) -> Any:
    """The class, object or function of a name.

    Raises:
        DeadlineError: The name is not registered.
    """
    if name in _OURS:
        return _OURS[name]
    for point in entry_points(group=GROUP):
        if point.name == name:
            return point.load()
    names = ", ".join(repr(known) for known in known_policies())
    raise DeadlineError(f"There is no policy {name!r}; choose one of {names}.")


def registered_name(kind: type) -> str | None:
    """The name of a registered class; None if it has none."""
    for name, known in _OURS.items():
        if known is kind:
            return name
    for point in entry_points(group=GROUP):
        package = re.split(r"[.:]", point.value)[0]
        if package == kind.__module__.partition(".")[0] and point.load() is kind:
            return point.name
    return None


def make_policy(name: str, parameters: Mapping[str, Any]) -> Policy:
    """A policy by its name, with the common parameters that it accepts.

    Raises:
        DeadlineError: The name is not registered, or the policy does not accept one of its own
            parameters.
    """
    return build(find_policy(name), parameters, repr(name))


DEFAULT_SHARING = "fair"
_DIVIDERS: dict[str, Callable[[], Divider]] = {"fair": PurseDivider, "even": EvenDivider}


def make_divider(name: str) -> Divider:
    """A divider: "fair" for equal totals, "even" for equal shares, both by weight.

    Raises:
        DeadlineError: The name is unknown.
    """
    if name not in _DIVIDERS:
        names = ", ".join(repr(known) for known in _DIVIDERS)
        raise DeadlineError(f"There is no sharing {name!r}; choose one of {names}.")
    return _DIVIDERS[name]()
