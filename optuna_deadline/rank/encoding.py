"""Messages as JSON: reading one runs no code of the sender.

The worker does not import the objective's modules, and the rank does not import the sampler's. An
object of their classes cannot be read on the other side, so sending it is an error inside the
objective, where it concerns one trial. What JSON does not have is a JSON object with the type as
its only key: messages, tuples, dicts, times, directives, Optuna's distributions and errors. Of a
message the fields are in order, so a later version may add fields with defaults at the end.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable, Sequence
from dataclasses import astuple, fields
from datetime import datetime
from typing import Any

from optuna import exceptions
from optuna.distributions import BaseDistribution, distribution_to_json, json_to_distribution
from optuna.trial import FrozenTrial, TrialState

from optuna_deadline.directives import Directive, Kind
from optuna_deadline.rank.messages import MESSAGES, Message

#: Bytes of a message: a worker holds it in memory and writes it to the database.
MAX_MESSAGE = 4 << 20

_TRIAL = (
    "number", "state", "values", "datetime_start", "datetime_complete", "params",
    "distributions", "user_attrs", "system_attrs", "intermediate_values", "_trial_id",
)  # fmt: skip


def packed(message: Any, what: str = "") -> bytes:
    """The bytes of a message.

    Args:
        message: The message, or a part of one.
        what: The call that it is of, for errors; by default the kind of message.

    Raises:
        TypeError: It contains something that has no JSON; see :func:`as_data`.
        ValueError: They are too many.
    """
    what = what or type(message).__name__
    text = json.dumps(_to_json(message, what), ensure_ascii=False)
    content = text.encode("utf-8", "surrogatepass")
    if len(content) > MAX_MESSAGE:
        raise ValueError(
            f"{what} got {len(content) / 2**20:.1f} MiB, more than the {MAX_MESSAGE >> 20} MiB "
            "that a worker accepts: save large values in a file, and pass its path."
        )
    return content


def unpacked(content: bytes) -> Any:
    """The message in some bytes.

    Raises:
        ValueError: They are no message.
    """
    try:
        return _from_json(json.loads(content.decode("utf-8", "surrogatepass")))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
        raise ValueError(f"A message cannot be read: {error}") from None


def _to_json(value: Any, what: str) -> Any:
    def each(values: Sequence[Any]) -> list[Any]:
        return [_to_json(one, what) for one in values]

    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Message):
        values = [getattr(value, one.name) for one in fields(value)]
        return {type(value).__name__: each(values)}
    if isinstance(value, Directive):
        return {"directive": [value.kind.value, *astuple(value)[1:]]}
    if isinstance(value, list):
        return each(value)
    if isinstance(value, tuple):
        return {"tuple": each(value)}
    if isinstance(value, dict):
        return {"dict": [each(pair) for pair in value.items()]}
    if isinstance(value, datetime):
        return {"time": value.isoformat()}
    if isinstance(value, BaseDistribution):
        return {"distribution": distribution_to_json(value)}
    if isinstance(value, FrozenTrial):
        return {"trial": each([getattr(value, name) for name in _TRIAL])}
    if isinstance(value, BaseException):
        only = value.args[0] if len(value.args) == 1 else None
        return {"error": [type(value).__name__, only if type(only) is str else str(value)]}
    return as_data(value, what)


def _from_json(found: Any) -> Any:
    if isinstance(found, list):
        return [_from_json(one) for one in found]
    if not isinstance(found, dict):
        return found
    ((kind, content),) = found.items()
    if (message := MESSAGES.get(kind)) is not None:
        return message(*map(_from_json, content))
    return _READERS[kind](content)


def _read_directive(content: list[Any]) -> Directive:
    kind, reason, seq, deadline, keep_warm = content
    return Directive(Kind(kind), str(reason), int(seq), bool(deadline), bool(keep_warm))


def _read_trial(content: list[Any]) -> FrozenTrial:
    facts = dict(zip(_TRIAL, map(_from_json, content), strict=True))
    facts["state"] = TrialState(facts["state"])
    return FrozenTrial(value=None, trial_id=facts.pop("_trial_id"), **facts)


def _read_error(content: list[str]) -> Exception:
    """An error of a class that every process has, else a RuntimeError with its text."""
    name, text = content
    known = getattr(builtins, name, None) or getattr(exceptions, name, None)
    if isinstance(known, type) and issubclass(known, Exception):
        try:
            return known(text)
        except Exception:  # its class takes other arguments
            pass
    return RuntimeError(f"{name}: {text}")


_READERS: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda content: tuple(_from_json(list(content))),
    "dict": lambda content: {_from_json(key): _from_json(value) for key, value in content},
    "time": datetime.fromisoformat,
    "distribution": json_to_distribution,
    "directive": _read_directive,
    "trial": _read_trial,
    "error": _read_error,
}


def as_data(value: Any, what: str) -> Any:
    """The value as plain Python objects, as Optuna's storages keep it.

    Numbers of NumPy become Python's; members of an ``Enum`` that is also text or a number become
    that.

    Args:
        value: The objective's argument.
        what: The call, for the error.

    Raises:
        TypeError: It contains anything but numbers, text, None, lists, tuples and dicts.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (list, tuple)):
        plain_list = [as_data(each, what) for each in value]
        return tuple(plain_list) if isinstance(value, tuple) else plain_list
    if isinstance(value, dict):
        return {as_data(key, what): as_data(each, what) for key, each in value.items()}
    for plain in (str, int, float):
        if isinstance(value, plain):
            return plain(getattr(value, "value", value))
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()
    raise TypeError(
        f"{what} takes numbers, text, lists and dicts, but got {type(value).__qualname__}: pass "
        "a number such as float(value), or text such as str(value)."
    )


def restored_choice(choices: Sequence[Any], chosen: Any, what: str) -> Any:
    """The member of ``choices`` that was sent as ``chosen``."""
    for choice in choices:
        sent = as_data(choice, what)
        if type(sent) is type(chosen) and sent == chosen:
            return choice
    return chosen
