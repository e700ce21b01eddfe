"""Which policy decides: one by its name, one at a place in the user's code, or an object.

The terms of a study are read by every process, so they hold a name or a place. An object exists
in one process alone; its terms say so, and another process gets an error that says what to do.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from optuna_deadline.errors import DeadlineError, spelled
from optuna_deadline.policies import DEFAULT, Plan, Policy, Snapshot
from optuna_deadline.policies.registry import build, find_policy
from optuna_deadline.rank.objective import import_place

#: A name ("hypersched"), a place ("policy.py:Mine"), an object with ``plan``, its class, or a
#: function from a snapshot to a plan.
PolicyLike: TypeAlias = str | Policy | Callable[[Snapshot], Plan] | type[Policy]

_OBJECT = "object:"
_FACTOR = 4  #: of rungs that are drawn for a policy without any


def name_of(policy: PolicyLike | None) -> str:
    """What the terms call a policy."""
    if policy is None:
        return DEFAULT
    if isinstance(policy, str):
        return policy
    kind = policy if hasattr(policy, "__qualname__") else type(policy)
    return f"{_OBJECT}{kind.__qualname__}"


def make(policy: PolicyLike | None, parameters: Mapping[str, Any]) -> Policy:
    """The policy itself.

    Args:
        policy: None for the default.
        parameters: Those of every study, and the policy's own.

    Raises:
        DeadlineError: There is none of that name or at that place, it is an object of another
            process, or it does not take one of its parameters.
    """
    check_values(parameters)
    if not isinstance(policy, str):
        return build(find_policy(DEFAULT) if policy is None else policy, parameters, _say(policy))
    if policy.startswith(_OBJECT):
        name = policy.removeprefix(_OBJECT)
        place = spelled(f"policy='FILE.py:{name}'", f"--policy FILE.py:{name}")
        raise DeadlineError(
            f"This study uses {name}, an object in the process that created it; for other "
            f"processes, create it with a place: {place}."
        )
    if ":" in policy:
        found = import_named(policy, "policy", lambda it: callable(it) or hasattr(it, "plan"))
        return build(found, parameters, _say(policy))
    return build(find_policy(policy), parameters, _say(policy))


def own_factor(policy: PolicyLike | None, parameters: Mapping[str, Any]) -> int:
    """The default reduction factor of a policy; 4 if it has none.

    Raises:
        DeadlineError: As :func:`make`.
    """
    others = {name: value for name, value in parameters.items() if name != "reduction_factor"}
    made = make(policy, others)
    return int(getattr(made, "reduction_factor", _FACTOR))


def check_values(parameters: Mapping[str, Any]) -> None:
    """Refuse parameters that the study's row cannot hold.

    Raises:
        DeadlineError: One of them is more than numbers, texts, lists and tables.
    """
    for name, value in parameters.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise DeadlineError(
                f"The policy's parameter {name}={value!r} must be a number, a text, true, false, "
                "or a list or table of these, since the study stores it as JSON."
            ) from None


def merge(resources: Mapping[str, Any], own: Mapping[str, Any] | None) -> dict[str, Any]:
    """A study's parameters: those of every policy, and this one's own.

    Raises:
        DeadlineError: The policy's own hold one that has an argument of its own.
    """
    twice = [name for name in own or {} if name in resources]
    if twice:
        raise DeadlineError(
            f"{twice[0]} is a separate argument; leave it out of the policy's parameters."
        )
    return {**resources, **(own or {})}


def parse_settings(settings: list[str] | None, option: str = "--set") -> dict[str, Any]:
    """Parameters from a command line's ``name=value``; a value that is no JSON is a text.

    Raises:
        DeadlineError: One of them has no name or no value.
    """
    found: dict[str, Any] = {}
    for setting in settings or []:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip().isidentifier():
            raise DeadlineError(f"{option} {setting} is not a setting: write {option} NAME=VALUE.")
        try:
            found[name.strip()] = json.loads(value)
        except ValueError:
            found[name.strip()] = value
    return found


def import_named(place: str, what: str, fits: Callable[[Any], bool]) -> Any:
    """What is at a place in the user's code.

    Args:
        place: FILE.py:NAME or MODULE:NAME.
        what: What it is to be, for messages: "policy", "sampler".
        fits: Whether an object can be that.

    Raises:
        DeadlineError: Nothing that fits is there.
    """
    where, _, name = place.rpartition(":")
    if not where or not name:
        raise DeadlineError(f"{place!r} is not a {what}: write FILE.py:NAME or MODULE:NAME.")
    if where.endswith(".py") and not Path(where).is_file():
        raise DeadlineError(
            f"There is no file {where} with a {what} here ({Path.cwd()}); it must be on every "
            "machine that has a worker."
        )
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    return import_place(place, what, fits)


def _say(policy: PolicyLike | None) -> str:
    return repr(policy if isinstance(policy, str) else name_of(policy).removeprefix(_OBJECT))
