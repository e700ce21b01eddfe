"""Select a policy: by its name, by its place in the user's code, or as an object.

Every process reads the terms of a study, so they hold a name or a place. An object exists in one
process only. The terms then say so, and another process gets an error that says what to do.
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
_FACTOR = 4  #: of the rungs in charts if the policy has none


def name_of(policy: PolicyLike | None) -> str:
    """The name of a policy in the terms."""
    if policy is None:
        return DEFAULT
    if isinstance(policy, str):
        return policy
    kind = policy if hasattr(policy, "__qualname__") else type(policy)
    return f"{_OBJECT}{kind.__qualname__}"


def make(policy: PolicyLike | None, parameters: Mapping[str, Any]) -> Policy:
    """Make a policy.

    Args:
        policy: The policy; None for the default.
        parameters: The parameters of every policy, and further ones of this policy.

    Raises:
        DeadlineError: The policy does not exist, is an object of another process, or does not
            accept a parameter.
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


def complete(policy: PolicyLike | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a new study: the given ones, and defaults for those that are None.

    Raises:
        DeadlineError: As :func:`make`.
    """
    known = {"min_resource": 1, "max_resource": None, **without_none(given)}
    made = make(policy, known)
    return {"reduction_factor": int(getattr(made, "reduction_factor", _FACTOR)), **known}


def without_none(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that were given a value."""
    return {name: value for name, value in given.items() if value is not None}


def check_values(parameters: Mapping[str, Any]) -> None:
    """Check that the parameters can be stored as JSON.

    Raises:
        DeadlineError: A parameter does not consist of numbers, strings, lists and dictionaries.
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
    """Merge the parameters of every policy with further ones of this policy.

    Raises:
        DeadlineError: A further parameter is one that has its own argument.
    """
    twice = [name for name in own or {} if name in resources]
    if twice:
        raise DeadlineError(
            f"{twice[0]} is a separate argument; leave it out of the policy's parameters."
        )
    return {**resources, **(own or {})}


def parse_settings(settings: list[str] | None, option: str = "--set") -> dict[str, Any]:
    """Parse parameters such as ``name=value``; a value that is not JSON is a string.

    Raises:
        DeadlineError: A parameter has no name or no value.
    """
    found: dict[str, Any] = {}
    for setting in settings or []:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip().isidentifier():
            raise DeadlineError(f"{option} {setting} is not a setting: write {option} NAME=VALUE.")
        try:
            found[name.strip()] = json.loads(value)
        except (ValueError, RecursionError):
            found[name.strip()] = value
    return found


def import_named(place: str, what: str, fits: Callable[[Any], bool]) -> Any:
    """Load an object from the user's code.

    Args:
        place: FILE.py:NAME or MODULE:NAME.
        what: The kind of object, for messages: "policy" or "sampler".
        fits: Returns whether an object is of this kind.

    Raises:
        DeadlineError: There is no object of this kind at the place.
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
