"""Which values may be sent between a rank and its worker, which import different modules.

The worker does not import the objective's modules, and the rank does not import the sampler's. An
object of their classes cannot be read on the other side, so sending it is an error inside the
objective, where it concerns one trial.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

#: Bytes of a message: a worker holds it in memory and writes it to the database.
MAX_MESSAGE = 4 << 20

#: Optuna's tables and those of this package keep a step in 32 bits.
MAX_STEP = 2**31 - 1


def packed(message: Any, what: str) -> bytes:
    """The bytes of a message.

    Raises:
        ValueError: They are too many.
    """
    content = pickle.dumps(message)
    if len(content) > MAX_MESSAGE:
        raise ValueError(
            f"{what} got {len(content) / 2**20:.1f} MiB, more than the {MAX_MESSAGE >> 20} MiB "
            "that a worker accepts: save large values in a file, and pass its path."
        )
    return content


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


def checked_step(step: int) -> int:
    """Check that the databases can keep a step.

    Raises:
        ValueError: It is negative or too large.
    """
    step = int(step)
    if not 0 <= step <= MAX_STEP:
        raise ValueError(
            f"A step must be from 0 to {MAX_STEP:,}, but got {step:,}: report after so many "
            "epochs, batches or thousands of tokens."
        )
    return step


def portable_error(error: BaseException) -> BaseException:
    """The error itself if every process can read it, else a RuntimeError with its text."""
    module = type(error).__module__
    if module == "builtins" or module.partition(".")[0] == "optuna":
        try:
            if type(pickle.loads(pickle.dumps(error))) is type(error):
                return error
        except Exception:  # its arguments cannot be pickled, or its __init__ takes others
            pass
    return RuntimeError(f"{type(error).__name__}: {error}")


def restored_choice(choices: Sequence[Any], chosen: Any, what: str) -> Any:
    """The member of ``choices`` that was sent as ``chosen``."""
    for choice in choices:
        sent = as_data(choice, what)
        if type(sent) is type(chosen) and sent == chosen:
            return choice
    return chosen
