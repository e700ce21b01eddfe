"""From whatever can decide to a policy: classes, objects, and plain functions of a snapshot."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from optuna_deadline.errors import DeadlineError
from optuna_deadline.policies.api import Plan, Policy
from optuna_deadline.policies.snapshot import Snapshot

#: What every study has; who does not take one of them is not told.
COMMON = ("min_resource", "max_resource", "reduction_factor")


@dataclass(frozen=True)
class FunctionPolicy:
    """A function of a snapshot as a policy.

    Args:
        function: Takes the snapshot first; all else by name.
        parameters: What it is given by name each time.
    """

    function: Callable[..., Plan]
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Ask the function.

        Raises:
            TypeError: It returned something else than a plan.
        """
        plan = self.function(snapshot, **self.parameters)
        if not isinstance(plan, Plan):
            name = getattr(self.function, "__qualname__", repr(self.function))
            raise TypeError(
                f"The policy {name} returned {type(plan).__name__}; return a Plan for all trials."
            )
        return plan


def build(found: Any, parameters: Mapping[str, Any], name: str) -> Policy:
    """A policy from a class, from a function that makes one, from an object or a function.

    Args:
        found: A class with ``plan``, or a function that returns an object with ``plan``: called
            with the parameters that it takes. An object with ``plan``: taken as it is. A function
            whose first argument is the snapshot: wrapped, with the parameters that it takes.
        parameters: The three that every study has, and the policy's own.
        name: For messages.

    Raises:
        DeadlineError: It can be no policy, or it does not take one of its own parameters.
    """
    if not isinstance(found, type) and callable(getattr(found, "plan", None)):
        _refuse(name, [key for key in parameters if key not in COMMON], [])
        return cast("Policy", found)
    if not callable(found) or (isinstance(found, type) and not hasattr(found, "plan")):
        raise DeadlineError(
            f"{name} is {type(found).__name__} and no policy: give an object with "
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
            f"{name} made {type(made).__name__}, which has no plan(snapshot) and is no policy."
        )
    return cast("Policy", made)


_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _names(asks: list[inspect.Parameter]) -> list[str]:
    return [p.name for p in asks if p.kind in _BY_NAME]


def _decides(found: Callable[..., Any], asks: list[inspect.Parameter]) -> bool:
    """Whether it takes a snapshot first, rather than making something that does."""
    if isinstance(found, type) or not asks:
        return False
    first = asks[0]
    positional = first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD)
    return positional and first.default is first.empty and first.name not in COMMON


def _refuse(name: str, unknown: list[str], takes: list[str]) -> None:
    if unknown:
        known = ", ".join(takes) or "none of its own"
        raise DeadlineError(f"The policy {name} takes no {unknown[0]!r}; it takes {known}.")
