"""The attributes that optuna-dashboard reads, written in one short transaction.

optuna-dashboard keeps notes and figures as system attributes of the study, in pieces of 2,045
characters. It writes each piece in its own transaction, so a viewer could see half of an old
figure and half of a new one. The database accepts longer pieces: here each figure is one piece,
and all are written at once. This module also writes attributes of trials that have ended, which
Optuna's interface refuses.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa
from optuna.study import Study

from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.limits import begin_bounded
from optuna_deadline.study.rows import own_id

_system = sa.table(
    "study_system_attributes", sa.column("study_id"), sa.column("key"), sa.column("value_json")
)
_user = sa.table(
    "trial_user_attributes", sa.column("trial_id"), sa.column("key"), sa.column("value_json")
)
_FIGURE = "dashboard:plot_data:{}:"
_NOTE = "dashboard:{}note_str:"
_VERSION = "dashboard:{}note_ver"

#: Starts our part of a note; the text before it is the user's.
OURS = "**optuna-deadline** updates the text below; text above this line stays."


class DashboardAttributes:
    """Writes the attributes of one study for optuna-dashboard.

    Args:
        database: The database that holds the study.
        study_id: Optuna's id of the study.
    """

    def __init__(self, database: Database, study_id: int) -> None:
        self._engine = database.engine
        self._study_id = study_id

    @classmethod
    def of(cls, database: Database, study: Study) -> DashboardAttributes | None:
        """The writer for a study; None if it is not in the database of the allocation table."""
        study_id = own_id(database, study)
        kept = sa.inspect(database.engine).has_table(_system.name)
        return cls(database, study_id) if study_id is not None and kept else None

    def write(
        self,
        figures: Mapping[str, str],
        notes: Mapping[int | None, str],
        user: Mapping[int, Mapping[str, Any]],
    ) -> None:
        """Replace figures, our part of notes, and attributes of trials: all or nothing.

        Args:
            figures: The JSON of figures by id.
            notes: Markdown by the trial's id; None for the study's note. An empty one is deleted,
                except a user's text.
            user: User attributes by the trial's id.
        """
        with self._engine.begin() as connection:
            begin_bounded(connection)
            for name, text in figures.items():
                self._put(connection, _FIGURE.format(name), text)
            for trial_id, ours in notes.items():
                self._note(connection, "" if trial_id is None else f"{trial_id}:", ours)
            rows = [
                {"trial_id": trial_id, "key": key, "value_json": json.dumps(value)}
                for trial_id, values in user.items()
                for key, value in values.items()
            ]
            if rows:
                keys = {row["key"] for row in rows}
                connection.execute(
                    sa.delete(_user).where(_user.c.trial_id.in_(user), _user.c.key.in_(keys))
                )
                connection.execute(sa.insert(_user), rows)

    def noted(self) -> set[int]:
        """The ids of trials that have a note, ours or a user's."""
        whose = sa.select(_system.c.key).where(
            _system.c.study_id == self._study_id, _system.c.key.like("dashboard:%:note_ver")
        )
        with self._engine.begin() as connection:
            begin_bounded(connection)
            return {int(key.split(":")[1]) for key in connection.execute(whose).scalars()}

    def _note(self, connection: sa.Connection, whose: str, ours: str) -> None:
        version = _VERSION.format(whose)
        found = connection.execute(
            sa.select(_system.c.value_json)
            .where(_system.c.study_id == self._study_id, _system.c.key == version)
            .with_for_update()
        ).scalar()
        before = self._text(connection, _NOTE.format(whose))
        theirs, mark, _ = before.partition(OURS)
        after = theirs.rstrip() if ours or mark else before
        if ours:
            after = f"{after}\n\n{OURS}\n\n{ours}" if after else f"{OURS}\n\n{ours}"
        if after == before:
            return
        if not after:
            for one in (_NOTE.format(whose), version):
                connection.execute(sa.delete(_system).where(*self._pieces(one)))
            return
        self._put(connection, _NOTE.format(whose), after)
        self._replace(connection, [version], {version: json.loads(found or "0") + 1})

    def _text(self, connection: sa.Connection, prefix: str) -> str:
        rows = connection.execute(
            sa.select(_system.c.key, _system.c.value_json).where(*self._pieces(prefix))
        ).all()
        numbered = {int(key[len(prefix) :]): json.loads(value) for key, value in rows}
        return "".join(numbered[place] for place in sorted(numbered))

    def _put(self, connection: sa.Connection, prefix: str, text: str) -> None:
        connection.execute(sa.delete(_system).where(*self._pieces(prefix)))
        self._replace(connection, [], {f"{prefix}0": text})

    def _replace(
        self, connection: sa.Connection, gone: Collection[str], new: Mapping[str, Any]
    ) -> None:
        if gone:
            mine = (_system.c.study_id == self._study_id, _system.c.key.in_(gone))
            connection.execute(sa.delete(_system).where(*mine))
        rows = [
            {"study_id": self._study_id, "key": key, "value_json": json.dumps(value)}
            for key, value in new.items()
        ]
        connection.execute(sa.insert(_system), rows)

    def _pieces(self, prefix: str) -> tuple[sa.ColumnElement[bool], ...]:
        return (
            _system.c.study_id == self._study_id,
            _system.c.key.startswith(prefix, autoescape=True),
        )
