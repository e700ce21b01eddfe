"""Databases for the tests: a SQLite file, and a fresh PostgreSQL database each time."""

from __future__ import annotations

import functools
import gc
import logging
import os
import platform
import shutil
import uuid
import warnings
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

# Recorded decisions hold for one kernel of OpenBLAS: each has sums of its own. Every processor
# with AVX2 has this one. It is chosen before NumPy is imported.
if platform.machine() in ("x86_64", "AMD64"):
    os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")

os.environ.setdefault("KERAS_BACKEND", "torch")  # the one that is installed

import hypothesis
import optuna
import pytest
import typer.testing
from hypothesis.internal.conjecture import providers
from optuna.storages._rdb import storage

pytest_plugins = ("tiers",)
# Thousands of tests share a process with the modules of torch and Optuna. To look for cycles
# among all these objects as often as Python does takes an eighth of the time.
gc.set_threshold(100_000, 20, 20)
pytest.register_assert_rewrite("optuna.testing.pytest_samplers")

from benchmarks.support.postgres import EmbeddedPostgres, PostgresServer  # noqa: E402
from optuna_deadline.allocation.database import limits, opening  # noqa: E402

# How long an example takes says something about the machine, not about the code; and a change is
# judged by the same examples as the last one. `make test` draws few, `make test-all` more, and
# HYPOTHESIS_PROFILE=explore new ones.
hypothesis.settings.register_profile("few", deadline=None, derandomize=True, max_examples=25)
hypothesis.settings.register_profile("many", deadline=None, derandomize=True, max_examples=100)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
_profile = os.environ.get("HYPOTHESIS_PROFILE", "few")
hypothesis.settings.load_profile(_profile)
if _profile != "explore":
    # Hypothesis tries constants of all modules that happen to be imported: another order of tests
    # would draw other examples.
    providers._get_local_constants = lambda: providers._local_constants
# What is the same for all tests is made once: the parsers of our commands, and the newest version
# of Optuna's tables, for which each storage would read all their migrations.
typer.testing._get_command = functools.cache(typer.main.get_command)  # type: ignore[attr-defined]
_find_head = storage._VersionManager.get_head_version
_heads: dict[str, str] = {}
storage._VersionManager.get_head_version = lambda manager: (
    _heads["head"] if _heads else _heads.setdefault("head", _find_head(manager))
)
_SERVER: pytest.StashKey[EmbeddedPostgres] = pytest.StashKey()
optuna.logging.set_verbosity(optuna.logging.ERROR)
logging.getLogger("alembic").setLevel(logging.ERROR)


def pytest_configure(config: pytest.Config) -> None:
    """The host's experimental features are its own business."""
    config.addinivalue_line("filterwarnings", "ignore::optuna.exceptions.ExperimentalWarning")
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)


def pytest_collection_finish() -> None:
    """What is there before the first test stays, so the collector need not look at it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Add the server's log to a failure of a test with a database."""
    report = yield
    server = item.config.stash.get(_SERVER, None)
    if report.failed and server is not None:
        report.sections.append(("the end of PostgreSQL's log", server.log()))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Each reason for skips once, with its count."""
    reports = [each for each in terminalreporter.stats.get("skipped", []) if each.skipped]
    reasons = Counter(
        each.longrepr[2] if isinstance(each.longrepr, tuple) else str(each.longrepr)
        for each in reports
        if not hasattr(each, "wasxfail")
    )
    if reasons:
        terminalreporter.section("reasons for skips")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count:5} {reason.removeprefix('Skipped: ')}")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that waits for this process, which has no worker's loop around it to try again.

    On a busy machine a test may stand still between two statements for as long as a worker may be
    frozen. Workers of their own process keep the promise of production.
    """
    monkeypatch.setattr(limits, "FROZEN_SECONDS", 10.0)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that runs in this process sets up our logger; the next test finds it as it was."""
    logger = logging.getLogger("optuna_deadline")
    handlers, level, propagates = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = propagates


@pytest.fixture
def event_files_from_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Number TensorBoard's files as a new process does: of one second, it reads 10 before 9."""
    writer = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    monkeypatch.setattr(writer, "_global_uid", writer.AtomicCounter(0))


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """One server for the run: our own, or the one that OPTUNA_DEADLINE_TEST_URL names."""
    if given := os.environ.get("OPTUNA_DEADLINE_TEST_URL"):
        yield PostgresServer(given)
        return
    with EmbeddedPostgres() as server:
        request.config.stash[_SERVER] = server
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> Iterator[str]:
    """A database with Optuna's tables and ours: a copy costs a fifth of making them anew."""
    name = f"od_template_{uuid.uuid4().hex[:8]}"
    url = postgres.create_database(name)
    made = optuna.storages.RDBStorage(url)
    made.remove_session()
    made.engine.dispose()  # a template must have no connections
    opening.disconnect(opening.connect(url))
    yield name
    postgres.drop_database(name)


@pytest.fixture
def postgres_url(postgres: PostgresServer, postgres_template: str) -> Iterator[str]:
    """The URL of a database of the test's own, with Optuna's tables and ours in it."""
    name = f"od_{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name, postgres_template)
    _disconnect(name)
    postgres.drop_database(name)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with Optuna's tables."""
    path = tmp_path_factory.mktemp("template") / "study.db"
    optuna.storages.RDBStorage(f"sqlite:///{path}").engine.dispose()
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> Iterator[str]:
    """The URL of a SQLite file of the test's own, with Optuna's tables in it and none of ours."""
    path = tmp_path / "study.db"
    shutil.copy(sqlite_template, path)
    yield f"sqlite:///{path}"
    _disconnect(str(path))


@pytest.fixture(
    params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)],
)
def storage_url(request: pytest.FixtureRequest) -> str:
    """A database of the test's own, on each of the two systems in turn."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


def _disconnect(name: str) -> None:
    """Close what the package's cache of databases still holds open on a test's database."""
    for database in list(opening._databases.values()):
        if database.url.database == name:
            opening.disconnect(database)
