"""What people mistype: one sentence in the words of the command line, nothing is left behind."""

from __future__ import annotations

import shlex
from pathlib import Path

import optuna
import pytest
from typer.testing import CliRunner

from optuna_deadline.cli import app
from optuna_deadline.elastic import agree
from optuna_deadline.workers import devices

_TRAIN = "def objective(trial):\n    return trial.suggest_float('x', 0, 1)\n"
_URL = "sqlite:///study.db"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as users have it: a script, and a database with a study that has a deadline."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(devices, "present_gpus", list)
    (tmp_path / "train.py").write_text(_TRAIN)
    (tmp_path / "notes.txt").write_text("no database, however long its text is" * 100)
    agree(optuna.create_study(study_name="s", storage=_URL), "1h", None, {})
    optuna.create_study(study_name="plain", storage=_URL)
    return tmp_path


def refused(words: str, code: int = 2) -> str:
    """The one sentence with which a command refuses, @ for the folder's database."""
    asked = CliRunner().invoke(app, shlex.split(words.replace(" @", f" --storage {_URL}")))
    assert asked.exit_code == code, (asked.output, asked.exception)
    assert len(asked.stderr.strip().splitlines()) == 1, asked.stderr
    assert asked.stdout == ""
    return asked.stderr.strip()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("create s @ --deadline 2h", "move it for everybody with 'optuna-deadline extend s'"),
        ("create new @ --deadline 2h --min-resource 0", "--min-resource must be a whole number"),
        ("create new @ --deadline 2h --max-resource 0", "not below --min-resource, but got 0"),
        ("create new @ --deadline 2h --budget 20usd", "as in --price 0.9."),
        ("create new @ --deadline 2h --price 0.9", "give --budget 20usd too"),
        ("worker train.py:objective --study s @", "name some with --gpus all or --cpus 2"),
        ("worker train.py:objective --study s @ --cpus -1", "--cpus must be a positive number"),
        ("worker train.py:objective --study s @ --gpus all", "use --cpus instead"),
        ("worker train.py:objective --study s @ --gpus x", "--gpus must be 'all' or numbers"),
        ("worker train.py:objective --study s @ --cpus 1 --weight 0", "--weight must be"),
        ("worker train.py:objective --study s @ --cpus 1 --park -1", "--park must be"),
        ("worker train.py:objective --study plain @ --cpus 1", "create plain --deadline 2h'"),
        ("status plain @", "give it one with 'optuna-deadline create plain --deadline 2h'"),
    ],
)
def test_a_command_is_told_of_its_options_and_not_of_python(
    folder: Path, words: str, says: str
) -> None:
    said = refused(words)
    assert says in said
    assert "=True" not in said and "cpus=" not in said and "deadline=" not in said


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:///stduy.db", "There is no database {folder}/stduy.db: check --storage"),
        ("sqlite:///no/study.db", "There is no database {folder}/no/study.db: check --storage"),
        ("sqlite:///.", "There is no database {folder}"),
        ("sqlite:///train.py", "(file is not a database): check --storage"),
        ("sqlite:///notes.txt", "(file is not a database): check --storage"),
        ("sqlite://study.db", "in memory, gone when this command ends: name a file"),
        ("sqlite://", "in memory, gone when this command ends: name a file"),
        ("study.db", "'study.db' is no database URL: write sqlite:///study.db or"),
        ("''", "'' is no database URL"),
        ("postgresql://me:secret@host:port/db", "'postgresql://me:***@host:port/db' is no"),
        ("mysql://me:secret@host/db", "Studies are kept on SQLite or PostgreSQL, not on 'mysql'"),
        ("postgres://host/db", "not on 'postgres': write sqlite:///study.db or postgresql://"),
        ("redis://host", "not on 'redis'"),
        ("postgresql+asyncpg://host/db", "No driver for postgresql+asyncpg:// is installed"),
        ("postgresql+psykopg://host/db", "No driver for postgresql+psykopg:// is installed"),
        ("postgresql+psycopg://127.0.0.1:1/db", "The database does not answer ("),
    ],
)
def test_a_mistyped_database_is_named_and_not_made(folder: Path, url: str, says: str) -> None:
    before = sorted(folder.rglob("*"))
    away = "not a database" in says or "does not answer" in says
    for words in ("status s", "pool show", "dashboard", "metrics", "worker train.py:f --study s"):
        said = refused(f"{words} --storage {url}", code=1 if away else 2)
        assert says.format(folder=folder) in said and "secret" not in said
    assert sorted(folder.rglob("*")) == before
    assert (folder / "train.py").read_text() == _TRAIN
