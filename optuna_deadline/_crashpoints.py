"""Named places at which tests kill or freeze a process; in production they do nothing.

``OPTUNA_DEADLINE_CRASHPOINT=NAME:exit`` (or ``:freeze``) arms a place in every process that
inherits the variable. With a third part, ``NAME:exit:FILE``, only the first process that reaches
the place dies; it creates the file, and later processes pass.
"""

from __future__ import annotations

import os
import signal

_VARIABLE = "OPTUNA_DEADLINE_CRASHPOINT"
_ACTIONS = ("exit", "freeze")


def _parse(text: str | None) -> tuple[str, str, str] | None:
    if not text:
        return None
    name, _, rest = text.partition(":")
    action, _, once = rest.partition(":")
    if action not in _ACTIONS:
        raise ValueError(f"{_VARIABLE} must end in :exit or :freeze, not {text!r}.")
    return name, action, once


_armed: tuple[str, str, str] | None = _parse(os.environ.get(_VARIABLE))


def crashpoint(name: str) -> None:
    """Exit or freeze if this place is armed."""
    if _armed is not None and _armed[0] == name:
        _fire(_armed[1], _armed[2])


def _fire(action: str, once: str) -> None:
    if once:
        try:
            os.close(os.open(once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
    if action == "exit":
        os._exit(137)  # nothing is flushed, closed or rolled back
    os.kill(os.getpid(), signal.SIGSTOP)
