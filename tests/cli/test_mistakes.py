"""What people mistype: one sentence in the words of the command line, nothing is left behind."""

from __future__ import annotations

import shlex
from pathlib import Path

import optuna
import pytest
from typer.testing import CliRunner

from optuna_deadline.allocation.database.opening import connect
from optuna_deadline.allocation.table.reads import pools
from optuna_deadline.cli import app, demo
from optuna_deadline.elastic import agree
from optuna_deadline.study.agreement import read_all
from optuna_deadline.worker import devices

_TRAIN = "def objective(trial):\n    return trial.suggest_float('x', 0, 1)\n"


@pytest.fixture
def folder(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as users have it: a script, and a database with a study that has a deadline."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(devices, "present_gpus", list)
    (tmp_path / "train.py").write_text(_TRAIN)
    (tmp_path / "notes.txt").write_text("no database, however long its text is" * 100)
    monkeypatch.setattr(demo, "_check_installed", lambda: None)
    agree(optuna.create_study(study_name="s", storage=sqlite_url), "1h")
    optuna.create_study(study_name="plain", storage=sqlite_url)
    return tmp_path


def refused(words: str, code: int = 2) -> str:
    """The one sentence with which a command refuses; @ is the folder's database."""
    words = words.replace(" @", f" --storage sqlite:///{Path.cwd()}/study.db")
    asked = CliRunner().invoke(app, shlex.split(words))
    assert asked.exit_code == code, (asked.output, asked.exception)
    assert len(asked.stderr.strip().splitlines()) == 1, asked.stderr
    assert asked.stdout == ""
    return asked.stderr.strip()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("create s @ --deadline 2h", "with 'optuna-deadline set s --deadline 2h'"),
        (
            "create new @ --deadline 2h --policy fifo:min_resource=0",
            "min_resource must be a whole",
        ),
        ("create new @ --deadline 2h --max-slots 0", "--max-slots must be a number of slots"),
        ("create new @ --deadline 2h --policy fifo:max_resource=0", "not below min_resource"),
        ("create new @ --deadline 2h --budget 20usd", "as in --price 0.9."),
        ("create new @ --deadline 2h --price 0.9", "give --budget 20usd too"),
        ("worker train.py:objective --study s @", "name some with --gpus all or --cpus 2"),
        ("worker train.py:objective --study s @ --cpus -1", "--cpus must be a positive number"),
        ("worker train.py:objective --study s @ --gpus all", "use --cpus instead"),
        (
            "worker train.py:objective --study s @ --gpus x",
            "--gpus must be 'all' or a number of GPUs",
        ),
        (
            "worker train.py:objective --study s @ --cpus 9999",
            "ask for fewer, or add --oversubscribe",
        ),
        ("worker train.py:objective --study s @ --cpus 1 --weight 0", "--weight must be"),
        ("worker train.py:objective --study s @ --cpus 1 --keep-warm -1", "--keep-warm must be"),
        (
            "create new @ --deadline 2h --sampler tp",
            "There is no sampler 'tp'; choose",
        ),
        ("create new @ --deadline 2h --sampler tpe:seeds=1", "cannot be created"),
        ("create new @ --deadline 2h --sampler tpe:seed=1,x", "write tpe:NAME=VALUE"),
        ("create new @ --deadline 2h --n-trials 0", "n_trials must be a whole number from 1"),
        ("worker train.py:objective --study plain @ --cpus 1", "create plain --deadline 2h'"),
        ("worker train.py:objective --study 'my own' @ --cpus 1", "create 'my own''"),
        ("status plain @", "give it one with 'optuna-deadline create plain --deadline 2h'"),
    ],
)
def test_a_command_is_told_of_its_options_and_not_of_python(
    folder: Path, words: str, says: str
) -> None:
    output = refused(words)
    assert says in output
    assert "=True" not in output and "cpus=" not in output and "deadline=" not in output


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:///stduy.db", "There is no database {folder}/stduy.db: check --storage"),
        ("sqlite:///no/study.db", "There is no database {folder}/no/study.db: check --storage"),
        ("sqlite:///.", "There is no database {folder}"),
        ("sqlite:///train.py", "(file is not a database): check --storage"),
        ("sqlite:///notes.txt", "(file is not a database): check --storage"),
        ("sqlite://study.db", "in memory, which is lost when this command ends: name a file"),
        ("sqlite://", "in memory, which is lost when this command ends: name a file"),
        ("study.db", "'study.db' is not a database URL: write sqlite:///study.db or"),
        ("''", "'' is not a database URL"),
        ("postgresql://me:secret@host:port/db", "'postgresql://me:***@host:port/db' is no"),
        ("mysql://me:secret@host/db", "A study needs SQLite or PostgreSQL, not 'mysql'"),
        ("postgres://host/db", "not 'postgres': write sqlite:///study.db or postgresql://"),
        ("redis://host", "not 'redis'"),
        ("postgresql+asyncpg://host/db", "No driver for postgresql+asyncpg:// is installed"),
        ("postgresql+psykopg://host/db", "No driver for postgresql+psykopg:// is installed"),
        ("postgresql+psycopg://127.0.0.1:1/db", "The database does not answer ("),
    ],
)
def test_a_mistyped_database_is_named_and_not_made(folder: Path, url: str, says: str) -> None:
    before = set(folder.rglob("*"))
    away = "file is not a database" in says or "does not answer" in says
    for words in (
        "status s",
        "status --pool",
        "dashboard",
        "metrics",
        "worker train.py:f --cpus 1 --study s",
    ):
        output = refused(f"{words} --storage {url}", code=1 if away else 2)
        assert says.format(folder=folder) in output and "secret" not in output
    assert set(folder.rglob("*")) <= before  # SQLite deletes its -wal where a connection ends
    assert (folder / "train.py").read_text() == _TRAIN


_NEW = "--storage sqlite:///new.db"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("create '' @ --deadline 1h", "A study needs a name"),
        ("create ' ' @ --deadline 1h", "A study needs a name"),
        ("create new @ --deadline soon", "'soon' is not a deadline"),
        ("create new @ --deadline 0s", "cannot be met"),
        ("create new @ --deadline 2020-01-01T00:00Z", "has passed; give one in the future"),
        ("create new @ --deadline 2030-01-01T00:00", "has no time zone"),
        ("create new @ --deadline 1h --policy magic", "no policy 'magic'"),
        ("create new @ --deadline 1h --policy nofile.py:Mine", "There is no file nofile.py"),
        ("create new @ --deadline 1h --policy train.py:Mine", "has no policy 'Mine'"),
        ("create new @ --deadline 1h --policy fifo:magic=1", "'magic'"),
        ("create new @ --deadline 1h --policy fifo:a=1,magic", "write fifo:NAME=VALUE"),
        (
            "create new @ --deadline 1h --policy fifo:reduction_factor=1",
            "reduction_factor must be",
        ),
        ("create new @ --deadline 1h --budget 20usd", "needs a price"),
        ("create new @ --deadline 1h --budget lots --price 1", "'lots' is not a budget"),
        ("create new @ --deadline 1h --budget 9 --price no.csv", "no.csv cannot be read"),
        (
            "create new @ --deadline 1h --warm-start-from s --warm-start-from x",
            "There is no earlier study 'x'",
        ),
        ("create new @ --deadline 1h --warm-start-from new", "cannot be earlier than itself"),
        ("create s @ --deadline 1h --direction maximize", "exists with the direction minimize"),
        (f"create new {_NEW} --deadline soon", "'soon' is not a deadline"),
        (f"create new {_NEW} --deadline 2020-01-01T00:00Z", "has passed; give one in the future"),
        (f"create new {_NEW} --deadline 1h --policy magic", "no policy 'magic'"),
        (f"create new {_NEW} --deadline 1h --warm-start-from s", "There is no database"),
        ("create new --storage sqlite:///no/new.db --deadline 1h", "There is no folder no for"),
        (f"run nofile.py:objective {_NEW} --deadline 1h --cpus 1", "There is no file nofile.py"),
        (f"run train.py {_NEW} --deadline 1h --cpus 1", "is not an objective: write FILE.py:F"),
        (f"run :objective {_NEW} --deadline 1h --cpus 1", "is not an objective: write FILE.py:F"),
        (f"run train.py:objective {_NEW} --deadline 1h", "no GPU: give a number of CPU slots"),
        (f"run train.py:objective {_NEW} --deadline 1h --gpus all", "use --cpus instead"),
        (
            f"run train.py:objective {_NEW} --deadline 1h --cpus 0",
            "A worker with 0 slots cannot train",
        ),
        (
            f"run train.py:objective {_NEW} --deadline 1h --cpus 1 --hang-timeout 0",
            "--hang-timeout must",
        ),
        (
            f"run train.py:objective {_NEW} --deadline 1h --cpus 1 --keep-warm -1",
            "--keep-warm must be",
        ),
        (
            f"run train.py:objective {_NEW} --deadline 1h --cpus 1 --max-slots -1",
            "--max-slots must be",
        ),
        (
            f"run train.py:objective {_NEW} --deadline 1h --cpus 1 --checkpoints train.py",
            "No checkpoint",
        ),
        (
            f"run train.py:objective {_NEW} --deadline 1h --cpus 1 --budget 20 --price a=1/4",
            "this host says none: name it with --host-type or",
        ),
        ("worker nofile.py:objective --study s @ --cpus 1", "There is no file nofile.py"),
        ("worker nofile.py:objective --study plain @ --cpus 1", "There is no file nofile.py"),
        ("worker train.py:objective --study x @ --cpus 1", "There is no study 'x'"),
        (
            "worker train.py:objective --study s @ --cpus 1 --max-time soon",
            "'soon' is not a deadline",
        ),
        ("worker train.py:objective --study s @ --cpus 1 --sharing x", "There is no sharing 'x'"),
        ("set s @", "Nothing is given to set: give --deadline, --price or --budget"),
        ("set s @ --budget 5usd", "has no price, so it cannot have a budget"),
        ("steer 0 --study s @", "Give one of --pause, --resume and --resize"),
        ("steer 0 --study s --pause --resume @", "Give one of --pause, --resume and --resize"),
        ("stop s @ --within soon", "--within needs a duration such as"),
        ("stop s @ --within 2030-01-01T00:00Z", "--within needs a duration such as"),
        ("set s @ --deadline soon", "write a duration such as 2h30m, or a time with its zone"),
        ("status s --forecast @ --later soon", "--later needs a duration such as"),
        ("demo --folder new --deadline soon", "write a duration such as 2h30m"),
        ("demo --folder new --policy magic", "no policy 'magic'"),
        ("demo --folder new --sharing odd", "no sharing 'odd'"),
        ("demo --folder train.py/new", "No checkpoint can be written to"),
        ("simulate --deadline soon", "deadline needs a duration"),
    ],
)
def test_a_command_that_is_refused_leaves_nothing_behind(
    folder: Path, sqlite_url: str, words: str, says: str
) -> None:
    def seen() -> list[list[str]]:
        found = pools(connect(sqlite_url))
        agreed = [terms.name for terms, _ in read_all(connect(sqlite_url))]
        files = {path.name for path in folder.iterdir()} - {"__pycache__"}  # of a policy's file
        return [sorted(files), optuna.get_all_study_names(sqlite_url), agreed, found]

    before = seen()
    assert says in refused(words)
    assert seen() == before


@pytest.mark.parametrize(
    "words",
    ["dashboard @ --port 65536", "metrics @ --port -1", "demo --workers 0", "demo --cpus 0"],
)
def test_a_number_out_of_range_is_refused_by_its_option(folder: Path, words: str) -> None:
    asked = CliRunner().invoke(app, shlex.split(words.replace("@", "--storage sqlite:///x.db")))
    assert asked.exit_code == 2 and "Invalid value for" in asked.stderr
    assert not (folder / "demo-output").exists()


def test_a_folder_that_cannot_be_written_is_no_database_that_is_away(folder: Path) -> None:
    output = refused("create new --storage sqlite:////dev/fd/new.db --deadline 1h", code=1)
    assert "cannot be used (unable to open database file): check --storage, and that" in output
