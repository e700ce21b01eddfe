"""A password in the database's URL reaches no message, script, table or list of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import optuna
import psutil
import pytest
import sqlalchemy as sa
from tables import table_of, wait_until
from typer.testing import CliRunner

from optuna_deadline.cli import app
from optuna_deadline.cli.databases import GivenStorage, storage_options, without_password
from optuna_deadline.elastic import agree
from optuna_deadline.errors import DeadlineError
from optuna_deadline.study.terms import Given

CANARY = "c4n@ry/w:rd"
QUOTED = "c4n%40ry%2Fw%3Ard"
PROGRAM = [sys.executable, "-c", "from optuna_deadline.cli import app; app()"]
COMMANDS = (
    "status s", "top s", "status s --events", "status s --forecast", "load-best s",
    "set s --price 1", "steer 0 --pause --study s", "steer 0 --resume --study s",
    "steer 0 --resize 1 --study s", "drain node1", "status --pool", "stop s",
    "set s --deadline 2h", "worker json:loads --cpus 1 --study s", "clean s",
    "create s --deadline 1h", "run json:loads --deadline 1h --cpus 1 --study s", "doctor",
    "metrics", "dashboard", "slurm json:loads --study s --cpus 1 --checkpoints /x",
)  # fmt: skip


def secrets_in(text: str) -> list[str]:
    return [secret for secret in (CANARY, QUOTED, "c4n", "w:rd", "w%3Ard") if secret in text]


URLS = (
    f"postgresql+psycopg://user:{QUOTED}@127.0.0.1:1/db",  # no server
    f"postgresql://user:{CANARY}@host:port/db",  # cannot be parsed
    f"postgresql+psycopg://user@127.0.0.1:1/db?password={QUOTED}",
    f"postgres//user:{CANARY}@host/db",
    f"nothing://user:{QUOTED}@host/db",
)


@pytest.mark.parametrize(
    ("words", "url"),
    [(words, URLS[place % 2]) for place, words in enumerate(COMMANDS)]
    + [("status s", url) for url in URLS],
)
def test_no_command_prints_the_password(words: str, url: str) -> None:
    asked = CliRunner().invoke(app, [*words.split(), "--storage", url])
    assert asked.exit_code != 0
    assert isinstance(asked.exception, SystemExit), asked.exception
    assert not secrets_in(asked.output), asked.output


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:a@b:c/d@host/db", "postgresql://me:***@host/db"),
        ("me:secret@host", "me:***@host"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("postgresql://host/db?user=me&password=x&a=b", "postgresql://host/db?user=me&password=***&a=b"),
        ("sqlite:///a@b.db", "sqlite:///a@b.db"),
    ],
)  # fmt: skip
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_url_can_come_from_a_file_or_the_environment(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agree(optuna.create_study(study_name="s", storage=sqlite_url), "1h")
    file = tmp_path / "url"
    file.write_text(f"{sqlite_url}\n")
    for options, code in (([], 2), (["--storage-file", str(file)], 0)):
        assert CliRunner().invoke(app, ["status", "s", *options]).exit_code == code
    wrong = CliRunner().invoke(app, ["status", "s", "--storage-file", str(tmp_path)])
    assert wrong.exit_code == 2 and "cannot be read" in wrong.stderr
    monkeypatch.setenv("OPTUNA_DEADLINE_STORAGE", sqlite_url)
    assert CliRunner().invoke(app, ["status", "s"]).exit_code == 0


def test_a_job_script_has_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"postgresql://user:{QUOTED}@host/db"
    with pytest.raises(DeadlineError, match="--storage-file") as refused:
        storage_options(url)
    assert not secrets_in(str(refused.value))
    file = tmp_path / "url"
    file.write_text(url)
    assert storage_options(GivenStorage.read(file)) == ["--storage-file", str(file)]
    assert storage_options("postgresql://user@host/db") == [
        "--storage",
        "postgresql://user@host/db",
    ]
    monkeypatch.setenv("OPTUNA_DEADLINE_STORAGE", url)
    assert storage_options(url) == []


@pytest.mark.slow
@pytest.mark.postgres
def test_a_worker_and_its_ranks_show_no_password(postgres_url: str, tmp_path: Path) -> None:
    """Also not after errors of the objective and a lost connection."""
    study = optuna.create_study(study_name="s", storage=postgres_url)
    agree(study, "100s", Given("fifo", {"n_trials": 3}))
    (tmp_path / "train.py").write_text(
        "import time\n"
        "def objective(trial):\n"
        "    for step in range(20):\n"
        "        trial.report(1.0, step)\n"
        "        time.sleep(0.1)\n"
        "    raise OSError(trial)\n"
    )
    url = sa.make_url(postgres_url).set(password=CANARY).render_as_string(hide_password=False)
    log = (tmp_path / "log").open("w+")
    worker = subprocess.Popen(
        [*PROGRAM, "worker", "train.py:objective", "--study", "s", "--cpus", "2", "--log", "json"],
        env={**os.environ, "OPTUNA_DEADLINE_STORAGE": url},
        cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT,
    )  # fmt: skip
    table = table_of(study)
    wait_until(lambda: len(table.reports()) > 4, 60)
    family = [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]
    lines = [" ".join(process.cmdline()) for process in family]
    assert len(lines) > 2 and not secrets_in("\n".join(lines)), lines
    engine = sa.create_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(sa.text(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ))  # fmt: skip
    assert worker.wait(90) == 0
    with engine.begin() as connection:
        for name in sa.inspect(engine).get_table_names():
            rows = connection.execute(sa.text(f'SELECT * FROM "{name}"')).all()
            assert not secrets_in(str(rows)), name
    engine.dispose()
    log.seek(0)
    text = log.read()
    assert "OSError" in text and not secrets_in(text)
