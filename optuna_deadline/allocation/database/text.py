"""One text of a statement for PostgreSQL and SQLite, and the few words that differ.

A statement is written in the SQL that both understand (PostgreSQL 12, SQLite 3.38), with these
words beside it; nothing else is translated.

==========================  ======================================================================
``@trial``                  the table with the prefix of this package
``:name``                   a parameter; ``:now``, ``:pool`` and ``:study`` are always there
``NOW``                     the database's time in seconds, read again in each statement
``IN each(:ids)``           a JSON list of whole numbers (:func:`listed`)
``IN names(:names)``        a JSON list of texts
``IN pairs(:pairs)``        a JSON list of pairs of whole numbers
``FROM rows(:rows)``        a JSON list of lists, each of which is the column ``value``
``FOR UPDATE ...``          row locks, which SQLite does not need: one client writes at a time
``IS NOT DISTINCT FROM``    ``IS`` in SQLite before 3.39
==========================  ======================================================================

Values are parameters, and never part of a text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache

from optuna_deadline.allocation.database.schema import PREFIX

_SQLITE = {
    r"\bFOR (NO KEY UPDATE|UPDATE|SHARE)( OF \w+)?( SKIP LOCKED)?": "",
    r"\bIS NOT DISTINCT FROM\b": "IS",
    r"\bIS DISTINCT FROM\b": "IS NOT",
    r"\bNOW\b": "((julianday('now') - 2440587.5) * 86400.0)",
    r"\bIN (each|names)\((:\w+)\)": r"IN (SELECT value FROM json_each(\2))",
    r"\bIN pairs\((:\w+)\)": r"IN (SELECT value ->> 0, value ->> 1 FROM json_each(\1))",
    r"\brows\((:\w+)\)": r"json_each(\1)",
}
_POSTGRESQL = {
    r"\bNOW\b": "extract(epoch from clock_timestamp())::double precision",
    # An array, so that an index is used: the server cannot guess the length of a function's rows.
    r"\bIN each\((:\w+)\)": (
        r"= ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(\1::json) AS value))"
    ),
    r"\bIN names\((:\w+)\)": (
        r"= ANY (ARRAY(SELECT value FROM json_array_elements_text(\1::json) AS value))"
    ),
    r"\bIN pairs\((:\w+)\)": (
        r"IN (SELECT (value ->> 0)::bigint, (value ->> 1)::bigint"
        r" FROM json_array_elements(\1::json) AS value)"
    ),
    r"\brows\((:\w+)\)": r"json_array_elements(\1::json) AS value",
    r"(?<!:):(\w+)": r"%(\1)s",
}


@cache
def translated(text: str, postgresql: bool, given: bool) -> str:
    """The statement for a driver.

    Args:
        text: The statement.
        postgresql: Whether it is for PostgreSQL, else for SQLite.
        given: Whether a test or a simulation gives the time as ``:latest``.
    """
    # On a line of its own: PostgreSQL's errors show the beginning of the line.
    begins = r"(?<=[ (])(?<!DELETE )(INSERT INTO|UPDATE|DELETE FROM|FROM|JOIN) @"
    text = re.sub(begins, r"\n\1 @", text)
    text = re.sub(r"@(\w+)", rf"{PREFIX}\1", text)
    if given:
        text = re.sub(r"\bNOW\b", "CAST(:latest AS DOUBLE PRECISION)", text)
    for pattern, written in (_POSTGRESQL if postgresql else _SQLITE).items():
        text = re.sub(pattern, written, text)
    return text


def listed(values: Iterable[object]) -> str:
    """A parameter for ``each``, ``names``, ``pairs`` and ``rows``."""
    return json.dumps(list(values))
