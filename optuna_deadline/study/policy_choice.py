"""Select a policy: by its name, by its place in the user's code, or as an object.

Every process reads the terms of a study, so they hold a name or a place. An object exists in one
process only. The terms then say so, and another process gets an error that says what to do.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeAlias

from optuna_deadline.errors import DeadlineError, argument, spelled
from optuna_deadline.policies import DEFAULT, Plan, Policy, Snapshot
from optuna_deadline.policies.registry import build, find_policy, registered_name
from optuna_deadline.rank.objective import import_place

#: A name ("hypersched"), a place ("policy.py:Mine"), either with parameters
#: ("hypersched:recharge=8"); an object with ``plan``, its class, or a function from a snapshot to
#: a plan.
PolicyLike: TypeAlias = str | Policy | Callable[[Snapshot], Plan] | type[Policy]

_OBJECT = "object:"
_FACTOR = 4  #: of the rungs in charts if the policy has none


def parse(policy: PolicyLike | None) -> tuple[PolicyLike | None, dict[str, Any]]:
    """Split a policy into what is stored as its name and its parameters.

    An object of a registered class is its name and its fields. Any other object holds its
    parameters itself.

    Raises:
        DeadlineError: A text has a parameter without a name or a value.
    """
    if policy is None:
        return None, {}
    if isinstance(policy, str):
        return parse_call(policy, "policy")
    kind = policy if isinstance(policy, type) else type(policy)
    name = registered_name(kind)
    if name is None or isinstance(policy, type):
        return name or policy, {}
    return name, without_none(_fields_of(policy))


def _fields_of(policy: Any) -> dict[str, Any]:
    if not is_dataclass(policy):
        return {}
    return {each.name: getattr(policy, each.name) for each in fields(policy) if each.init}


def parse_call(text: str, what: str) -> tuple[str, dict[str, Any]]:
    """Split a name or place from its parameters, as in ``hypersched:recharge=8,finish=true``.

    A value that is not JSON is a string.

    Args:
        text: The name or place, a colon, and the parameters, divided by commas.
        what: The kind of object, for messages: "policy" or "sampler".

    Raises:
        DeadlineError: A parameter has no name or no value.
    """
    split = re.fullmatch(r"(.*?):(\s*[^\W\d]\w*\s*=.*)", text, re.DOTALL)
    if split is None:
        return text, {}
    name, rest = split.groups()
    found: dict[str, Any] = {}
    while rest:
        setting = re.match(r"\s*([^\W\d]\w*)\s*=(.*)", rest, re.DOTALL)
        if setting is None:
            raise DeadlineError(
                f"{argument(what)} {text} has parameters that cannot be read at {rest!r}: write "
                f"{name}:NAME=VALUE,NAME=VALUE."
            )
        found[setting[1]], rest = _value(setting[2])
    return name, found


def _value(text: str) -> tuple[Any, str]:
    """The first value of parameters divided by commas, and the text after its comma."""
    try:
        value, end = json.JSONDecoder().raw_decode(text)
        if not text[end:].strip():
            return value, ""
        if text[end:].lstrip().startswith(","):
            return value, text[end:].lstrip()[1:]
    except (ValueError, RecursionError):
        pass
    word, _, rest = text.partition(",")
    return word.strip(), rest


def name_of(policy: PolicyLike | None) -> str:
    """The name of a policy in the terms."""
    if policy is None:
        return DEFAULT
    found, _ = parse(policy)
    if isinstance(found, str):
        return found
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
    policy, own = parse(policy)
    parameters = {**parameters, **own}
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


def effective(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters of a stored policy: the stored ones, and its defaults for the others."""
    if name.startswith(_OBJECT):
        return dict(parameters)
    return {**_fields_of(make(name, parameters)), **without_none(parameters)}


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


def asked_for(
    policy: PolicyLike | None, n_trials: int | None = None
) -> tuple[PolicyLike | None, dict[str, Any]]:
    """The policy and its parameters, with the number of trials that is given beside it.

    Raises:
        DeadlineError: The number of trials is given twice, or a parameter has no value.
    """
    policy, parameters = parse(policy)
    if n_trials is not None and parameters.setdefault("n_trials", n_trials) != n_trials:
        raise DeadlineError(
            f"{argument('n_trials')} is {n_trials}, and the policy's n_trials is "
            f"{parameters['n_trials']}: give one of them."
        )
    return policy, parameters


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
