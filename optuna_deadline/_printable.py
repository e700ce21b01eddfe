"""Names and reasons that other users wrote, for terminals and logs.

A name with an escape sequence could rewrite the screen of its reader, and one with a line break
could forge a line of a log. Such characters are shown as escapes.
"""

from __future__ import annotations

import logging
import unicodedata


class Lines(str):
    """Text whose line breaks are meant, such as a traceback."""


def printable(text: str) -> str:
    """The text with control characters as escapes; on one line, unless it is :class:`Lines`."""
    if text.isprintable():
        return text
    kept = "\n\t" if isinstance(text, Lines) else ""
    return "".join(
        c
        if c.isprintable() or c in kept or unicodedata.category(c) == "Zs"
        else c.encode("unicode_escape").decode()
        for c in text
    )


def escape_arguments(record: logging.LogRecord) -> bool:
    """A logging filter that makes the arguments of each message printable."""
    if isinstance(record.args, tuple):
        record.args = tuple(map(_escaped, record.args))
    elif isinstance(record.msg, str):
        record.msg = printable(Lines(record.msg))
    return True


def _escaped(argument: object) -> object:
    if isinstance(argument, BaseException):
        argument = Lines(argument)
    return printable(argument) if isinstance(argument, str) else argument
