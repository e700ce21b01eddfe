"""The recipes of CONTRIBUTING for the table hold: a new column, and a new transition."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = "optuna_deadline/allocation/table"

#: By file, what is written after which line: a trial's note, which a new transition sets.
COLUMN = {
    "optuna_deadline/allocation/database/schema.py": (
        '    sa.Column("pausable", sa.Boolean),\n', '    sa.Column("note", sa.Text),\n'
    ),
    "optuna_deadline/allocation/records.py": (
        "\n\n    @property\n    def alive(",
        "\n    note: str | None = None  #: a user's\n\n    @property\n    def alive(",
    ),
}  # fmt: skip
TRANSITION = {
    f"{TABLE}/requests.py": (
        "    def set_price(",
        '''    def set_note(self, number: int, note: str) -> bool:
        """Write a note on a live trial."""
        with self._tx() as tx:
            return self._request(tx, "note", number, "note = :value WHERE true", note, note=note)

    def set_price(''',
    )
}  # fmt: skip
USE = """
from optuna_deadline.allocation.database.access import Database
from optuna_deadline.allocation.database.opening import connect
from optuna_deadline.allocation.table import AllocationTable
from optuna_deadline.allocation.table.memory import MemoryTable

file = AllocationTable(connect("sqlite:///new.db"), "p", 1)
for table in (MemoryTable(now=lambda: 1000.0), file):
    with table._tx() as tx:
        tx.run(
            "INSERT INTO @study (study_id, name, direction, started, deadline, policy, "
            "parameters) VALUES (1, 's', 'minimize', 0, 9e9, '', '{}') ON CONFLICT DO NOTHING"
        )
    table.register("a", "host", 1, [], 1)
    table.open_trial("a", table.elect_planner("a"), 0, 100)
    assert table.trials()[0].note is None
    assert table.set_note(0, "mine")
    assert table.trials()[0].note == "mine"
    assert table.events(kinds=["note"])[0].detail == {"note": "mine"}
"""


@pytest.mark.slow
def test_a_column_takes_two_files_and_a_transition_one(tmp_path: Path) -> None:
    """So few, since a record's fields select the columns and a statement is one text."""
    shutil.copytree(
        ROOT / "optuna_deadline", tmp_path / "optuna_deadline",
        ignore=shutil.ignore_patterns("__pycache__"),
    )  # fmt: skip
    for file, (before, after) in {**COLUMN, **TRANSITION}.items():
        path = tmp_path / file
        text = path.read_text()
        assert text.count(before) == 1, file
        written = before + after if file.endswith("schema.py") else after
        path.write_text(text.replace(before, written))
    run = subprocess.run(
        [sys.executable, "-c", USE], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert len(COLUMN) <= 3 and len(TRANSITION) == 1
